"""Recording of HTTP beneath the client libraries: `bodies`, `exchange`, and the seams in the libraries."""
