"""The asynchronous half: the stages between a call and its tool, in the order that `engine.plan` gives them."""
