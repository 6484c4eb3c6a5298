"""Measurements of agent_cache: what it costs, side by side with its peers, and on recorded agent runs."""
