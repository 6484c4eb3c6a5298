"""What runs between a call and its tool: `engine.call` is the path, `engine.order` what stands around it."""
