"""Processes that run an agent are killed at random moments and resumed; a receiver counts what they did."""
