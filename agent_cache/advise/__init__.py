"""Finds out from logs of tool calls which tags the tools need."""
