"""What runs between a call and its tool: `engine.call` is the path of a call."""
