"""Keys: their bytes, their hash, and the columns in which they arrive."""
