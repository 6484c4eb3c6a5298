"""Recordings of real agents' runs: are they replayed as they were, and what do recording and replaying cost?

`python -m benchmarks.recording` makes every recorded retail run again through the real retail tools, records it, and
replays it with nobody behind the tools. `python -m benchmarks.recording.speed` measures a call, and a large cassette.
"""
