"""Side by side with other caches for async functions, in one process, interleaved."""
