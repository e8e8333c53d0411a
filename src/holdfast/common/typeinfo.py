"""Type information under its PyFlink name."""

from holdfast.types.information.type_information import RowTypeInformation, TupleTypeInformation, TypeInformation, Types

RowTypeInfo = RowTypeInformation
TupleTypeInfo = TupleTypeInformation

__all__ = ["RowTypeInfo", "RowTypeInformation", "TupleTypeInfo", "TupleTypeInformation", "TypeInformation", "Types"]
