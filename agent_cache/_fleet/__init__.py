"""The commands `stats`, `keys`, `clear` and `doctor`: a tier as its operator sees it, from outside of any process."""
