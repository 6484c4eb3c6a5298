"""A retail store as cached tools, driven by the recorded runs of real agents: `python -m benchmarks.retail`."""
