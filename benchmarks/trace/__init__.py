"""What caches cost on recorded runs of agents: processor time over the bare tools, by agent_cache and by others."""
