"""Drift of retail runs, repeated and changed: for tests."""
