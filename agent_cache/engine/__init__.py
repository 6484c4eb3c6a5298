"""The asynchronous half: what runs between a call and the tool, in the order that `assemble` gives it."""
