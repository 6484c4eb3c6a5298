"""The parts of `AsyncCache`."""
