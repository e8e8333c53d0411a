"""Rows and their kinds under their path in PyFlink."""

from holdfast.types.row import Row, RowKind

__all__ = ["Row", "RowKind"]
