"""One module per group of budget rows: what is measured, how, and its limit."""
