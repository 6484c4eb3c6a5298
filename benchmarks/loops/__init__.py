"""Recorded runs of real agents in guarded sessions: which loops are found, and who is stopped for nothing.

Every call goes through a decorated tool in a real `AgentCacheSession`. Three questions: what becomes of the runs as
they were recorded (`recorded`), what becomes of loops and of honest work that is appended to the successful ones
(`injected`), and whether `on_loop="short_circuit"` ever skips a write or invents an answer in all of it (`audit`).
Run it with `python -m benchmarks.loops`.
"""
