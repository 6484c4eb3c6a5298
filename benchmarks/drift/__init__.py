"""Drift of retail runs, repeated, changed and natural: `python -m benchmarks.drift`."""
