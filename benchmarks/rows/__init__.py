"""The budget rows: how each is measured, and its limit."""
