"""Recorded runs of real agents in guarded sessions: which loops are found, and which useful work is stopped.

`python -m benchmarks.loops` answers three questions: where recorded runs are stopped, where loops and useful work are
stopped that are appended to the successful ones, and whether `on_loop="short_circuit"` ever skips a write or invents an
answer.
"""
