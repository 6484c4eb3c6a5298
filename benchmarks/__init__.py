"""Measurements of agent_cache: its cost, other caches beside it, and recorded runs of real agents.

`python -m` with `benchmarks.budgets`, `.trace`, `.compare`, `.retail`, `.loops`, `.recording`, `.recording.speed`,
`.fleet`, `.fleet.budgets` or `.retail.fleet`. `benchmarks.budgets --against PATH` compares two checkouts.
"""
