"""Drift of retail runs, repeated and changed: `python -m benchmarks.drift`."""
