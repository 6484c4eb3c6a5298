"""What `agent_cache.pytest_plugin` does once a test asks for it."""
