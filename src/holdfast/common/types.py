"""Rows and their kinds under their PyFlink names."""

from holdfast.types.row import Row, RowKind

__all__ = ["Row", "RowKind"]
