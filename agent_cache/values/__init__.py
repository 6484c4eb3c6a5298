"""Values: their identity, their written forms, and the types that every walk over them knows."""
