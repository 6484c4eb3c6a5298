"""The pure half: keys, tags, entries and the rules of coherence. No await, no clock, no I/O."""
