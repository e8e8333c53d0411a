"""Whatever a user may write for a type, turned into one."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.types.conversion.ddl import BINARY_COLLATION, parse_schema, parse_type
from holdfast.types.information.record_type import dataclass_type
from holdfast.types.information.type_information import (
    CharTypeInformation,
    CollatedStringTypeInformation,
    DecimalTypeInformation,
    ListTypeInformation,
    MapTypeInformation,
    PickledTypeInformation,
    RowTypeInformation,
    SerializerTypeInformation,
    TupleTypeInformation,
    TypeInformation,
    Types,
    ValueSerializer,
)
from holdfast.types.serializer import TypeSerializer

_CLASSES: Final[dict[Any, TypeInformation]] = {
    str: Types.STRING(),
    bool: Types.BOOLEAN(),
    int: Types.LONG(),
    float: Types.DOUBLE(),
    bytes: Types.BINARY(),
    Decimal: Types.BIG_DEC(),
    date: Types.SQL_DATE(),
    datetime: Types.INSTANT(),
    time: Types.SQL_TIME(),
    timedelta: Types.DURATION(),
}


def to_type(described: Any) -> TypeInformation:
    """Return the type that is described by almost anything.

    Possible are a TypeInformation, a TypeSerializer, DDL of a type or of columns, an Arrow type or schema, a data type
    or schema of PySpark, a Python class such as `int`, ``list[str]`` or a dataclass (classes that say nothing about
    their content, such as `dict` or another one of a user's own, mean pickled values), and None, which means pickled
    values.

    Raises:
        ConfigurationError: It is none of these, or a type without an Arrow form.
    """
    if described is None:
        return PickledTypeInformation()
    if isinstance(described, TypeInformation):
        return described
    if isinstance(described, ValueSerializer):
        return described.type_information
    if isinstance(described, TypeSerializer):
        return SerializerTypeInformation(described)
    if isinstance(described, str):
        return _from_ddl(described)
    if isinstance(described, pa.Schema):
        return RowTypeInformation(described.names, [_from_arrow(kind) for kind in described.types])
    if isinstance(described, pa.DataType):
        return _from_arrow(described)
    if isinstance(described, type) or typing.get_origin(described) is not None:
        return _from_class(described)
    describe = getattr(described, "jsonValue", None)
    if callable(describe):
        return _from_spark(describe())
    raise ConfigurationError(
        f"{described!r} does not describe a type. Use Types.*, DDL such as 'array<bigint>', or a Python class."
    )


def to_row_type(described: Any, names: Iterable[str] | None = None) -> RowTypeInformation:
    """Return the row type that is described by almost anything, see `to_type`.

    Args:
        described: The type; a tuple becomes a row as well.
        names: New names for the fields.

    Raises:
        ConfigurationError: It is not a row or tuple, or the number of names is another.
    """
    found = to_type(described)
    if not isinstance(found, (RowTypeInformation, TupleTypeInformation)):
        raise ConfigurationError(
            f"A row type is needed here, not {found}. Use Types.ROW_NAMED or 'a string, b bigint'."
        )
    if names is None and isinstance(found, RowTypeInformation):
        return found
    return RowTypeInformation(found.names if names is None else names, found.types)


def _from_ddl(text: str) -> TypeInformation:
    try:
        return parse_type(text)
    except ConfigurationError as error:
        try:
            return parse_schema(text)
        except ConfigurationError:
            raise error from None


def _from_class(described: Any) -> TypeInformation:
    known = _CLASSES.get(described)
    if known is not None:
        return known
    if isinstance(described, type) and dataclasses.is_dataclass(described):
        return dataclass_type(described, to_type)
    origin, arguments = typing.get_origin(described), typing.get_args(described)
    if origin is list and len(arguments) == 1:
        return ListTypeInformation(to_type(arguments[0]))
    if origin is dict and len(arguments) == 2:
        return MapTypeInformation(to_type(arguments[0]), to_type(arguments[1]))
    if origin is tuple and Ellipsis not in arguments:
        return TupleTypeInformation(map(to_type, arguments))
    if origin in (typing.Union, types.UnionType):
        rest = [argument for argument in arguments if argument is not type(None)]
        # None belongs to every type.
        return to_type(rest[0]) if len(rest) == 1 else PickledTypeInformation()
    return PickledTypeInformation()


def _from_arrow(kind: pa.DataType) -> TypeInformation:
    if pa.types.is_dictionary(kind):
        return _from_arrow(kind.value_type)
    if pa.types.is_timestamp(kind):
        return Types.INSTANT() if kind.tz is not None else Types.TIMESTAMP_NTZ()
    if pa.types.is_decimal(kind):
        return DecimalTypeInformation(kind.precision, kind.scale)
    if pa.types.is_map(kind):
        return MapTypeInformation(_from_arrow(kind.key_type), _from_arrow(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return ListTypeInformation(_from_arrow(kind.value_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(position) for position in range(kind.num_fields)]
        return RowTypeInformation([field.name for field in fields], [_from_arrow(field.type) for field in fields])
    for test, found in _ARROW:
        if test(kind):
            return found
    raise ConfigurationError(f"The Arrow type {str(kind)!r} has no counterpart here. Cast the column first.")


_ARROW: Final = (
    (pa.types.is_boolean, Types.BOOLEAN()),
    (pa.types.is_int8, Types.BYTE()),
    (pa.types.is_int16, Types.SHORT()),
    (pa.types.is_int32, Types.INT()),
    (pa.types.is_int64, Types.LONG()),
    (pa.types.is_float32, Types.FLOAT()),
    (pa.types.is_float64, Types.DOUBLE()),
    (pa.types.is_string, Types.STRING()),
    (pa.types.is_large_string, Types.STRING()),
    (pa.types.is_binary, Types.BINARY()),
    (pa.types.is_large_binary, Types.BINARY()),
    (pa.types.is_date32, Types.SQL_DATE()),
    (pa.types.is_time, Types.SQL_TIME()),
    (pa.types.is_duration, Types.DURATION()),
)


def _from_spark(document: Any, metadata: Mapping[str, Any] | None = None, path: str = "") -> TypeInformation:
    """Read the JSON form of PySpark's types; collations and CHAR stand in the metadata of the field."""
    metadata = metadata or {}
    if isinstance(document, str):
        return _simple_from_spark(document, metadata, path)
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"{document!r} is not the JSON form of a type of Spark.")
    kind = document.get("type")
    if kind == "array":
        return ListTypeInformation(_from_spark(document["elementType"], metadata, f"{path}.element"))
    if kind == "map":
        return MapTypeInformation(
            _from_spark(document["keyType"], metadata, f"{path}.key"),
            _from_spark(document["valueType"], metadata, f"{path}.value"),
        )
    if kind == "struct":
        fields = document["fields"]
        found = [_from_spark(field["type"], field.get("metadata"), field["name"]) for field in fields]
        return RowTypeInformation([field["name"] for field in fields], found)
    if kind == "udt" and "sqlType" in document:
        return _from_spark(document["sqlType"])
    raise ConfigurationError(f"The type {document!r} of Spark has no counterpart here. Cast the column first.")


def _simple_from_spark(name: str, metadata: Mapping[str, Any], path: str) -> TypeInformation:
    if name == "string":
        collation = str(metadata.get("__COLLATIONS", {}).get(path, "")).rpartition(".")[2]
        if collation and collation != BINARY_COLLATION:
            return CollatedStringTypeInformation(collation)
        declared = str(metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))
        if declared.startswith("char("):
            return CharTypeInformation(int(declared[5:-1]))
    return parse_type(name)
