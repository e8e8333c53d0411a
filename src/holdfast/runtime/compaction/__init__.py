"""Merging runs beside the epochs."""
