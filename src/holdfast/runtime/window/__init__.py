"""Windows as programs see them: kinds, assigners, triggers, evictors and functions. Nothing here runs by itself."""
