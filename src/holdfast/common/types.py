"""Rows under their PyFlink name."""

from holdfast.types.row import Row

__all__ = ["Row"]
