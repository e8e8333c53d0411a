"""Formats under the names that PyFlink gives them."""
