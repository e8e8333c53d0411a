"""The query clients and their common core."""
