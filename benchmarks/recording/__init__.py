"""Recordings of real agents' runs: whether they are replayed as recorded, and what recording and replaying cost.

`python -m benchmarks.recording` records every retail run, made again through the retail tools, and replays it without a
store. `python -m benchmarks.recording.speed` measures single calls and a large cassette,
`python -m benchmarks.recording.requests` requests to a server, beside vcrpy.
"""
