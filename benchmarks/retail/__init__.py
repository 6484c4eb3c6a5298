"""A retail store as cached tools, driven by the recorded runs of real agents.

Two questions, one module each: does a run see through the cache exactly what it saw without one (`replay`),
and do many runs on one store ever see an answer that was no longer true (`shared_store`)?
Run both with `python -m benchmarks.retail`.
"""
