"""Rows and their kinds under their PyFlink names."""

from holdfast.types.row import Row
from holdfast.types.row_kind import RowKind

__all__ = ["Row", "RowKind"]
