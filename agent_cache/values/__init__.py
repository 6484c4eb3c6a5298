"""Values: their identity, their written forms, their copies, and the types that every walk over them knows."""
