"""A relay between an MCP host and an MCP server that caches, records and replays the tool calls which pass by."""
