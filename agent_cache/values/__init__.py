"""Values as plain data and back: what leaves the process, and comes home with the types that it left with."""
