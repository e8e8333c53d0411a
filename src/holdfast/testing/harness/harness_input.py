"""How the harness tells what a function is, and which key an element has."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.datastream.stream.operation import declared_type, operator_spec
from holdfast.errors import ConfigurationError, NullKeyError
from holdfast.runtime.function.broadcast import BaseBroadcastProcessFunction, KeyedBroadcastProcessFunction
from holdfast.runtime.function.user_function import KeySelector
from holdfast.runtime.graph.stream_graph import OperatorSpec, Shape
from holdfast.runtime.operator import OpenedSelector, SubtaskInfo
from holdfast.runtime.window_operator.window_operator import WindowOperator
from holdfast.state.declaration.descriptor import MapStateDescriptor
from holdfast.types.changed_row import settled
from holdfast.types.conversion.convert import to_type
from holdfast.types.key.key_codec import key_codec_for
from holdfast.types.row import Row

_SHAPES: tuple[tuple[str, Shape], ...] = (
    ("process_element", "process"),
    ("map", "map"),
    ("flat_map", "flat_map"),
    ("filter", "filter"),
    ("reduce", "reduce"),
)


def shape_of(function: Any) -> Shape:
    """How a stream would call a function: by its method; a plain callable of two arguments is a process function.

    Raises:
        ConfigurationError: It is none of the functions that a stream takes.
    """
    for method, shape in _SHAPES:
        if callable(getattr(function, method, None)):
            return shape
    if callable(function) and not isinstance(function, type):
        return "process" if len(inspect.signature(function).parameters) == 2 else "map"
    raise ConfigurationError(f"the harness runs function objects and callables, not {function!r}.")


def spec_of(
    function: Any, output_type: Any, broadcast: Iterable[MapStateDescriptor[Any, Any]], *, keyed: bool
) -> OperatorSpec:
    """The specification of an operator of elements without a declared type, whose side outputs are read.

    Raises:
        ConfigurationError: The function or the type does not fit.
    """
    undeclared = declared_type(None, "harness")
    if isinstance(function, WindowOperator):
        emitted = declared_type(output_type, "harness")
        return OperatorSpec(function, "window", keyed, undeclared, emitted, side_outputs=True)
    if not isinstance(function, BaseBroadcastProcessFunction):
        spec = operator_spec(shape_of(function), function, undeclared, output_type, keyed=keyed)
        return replace(spec, side_outputs=True)
    if keyed != isinstance(function, KeyedBroadcastProcessFunction):
        raise ConfigurationError("a KeyedBroadcastProcessFunction needs key_by, a BroadcastProcessFunction has none.")
    emitted = declared_type(output_type, "harness")
    return OperatorSpec(function, "process", keyed, undeclared, emitted, side_outputs=True, broadcast=tuple(broadcast))


def given(value: Any) -> Any:
    """An element as a function gets it: a row of its own, as one that comes from another step is."""
    plain = settled(value)
    return plain.make(plain) if plain is value and isinstance(plain, Row) else plain


class ElementKeys:
    """The keys of elements, as `DataStream.key_by` takes them.

    Args:
        key_by: A column, several columns, or a selector.
        key_type: Type of the key; None for untyped Python keys.
    """

    def __init__(self, key_by: Any, key_type: Any) -> None:
        self._columns: tuple[str, ...] = ()
        if isinstance(key_by, str):
            self._columns = (key_by,)
        elif isinstance(key_by, KeySelector):
            self._opened = OpenedSelector(key_by.get_key, SubtaskInfo(uid="harness"))
        elif callable(key_by):
            self._opened = OpenedSelector(key_by, SubtaskInfo(uid="harness"))
        else:
            self._columns = tuple(key_by)
        if not self._columns:
            self._select = self._opened.bind(SubtaskInfo(uid="harness"))
        names = self._columns if len(self._columns) > 1 else ()  # a column of rows is a key by itself
        self.codec = key_codec_for(None if key_type is None else to_type(key_type), names)

    def close(self) -> None:
        """Closes a selector that has something to close."""
        if not self._columns:
            self._opened.close()

    def element(self, value: Any) -> Any:
        """The element as a function sees it: where columns are keys, a dictionary becomes a row."""
        return Row(**value) if self._columns and isinstance(value, Mapping) else value

    def of(self, elements: Sequence[Any]) -> tuple[list[Any], npt.NDArray[np.uint64]]:
        """Canonical keys and hashes of elements.

        Raises:
            NullKeyError: A key is None.
        """
        keys = []
        for row, element in enumerate(elements):
            key = self._key(element)
            if key is None:
                raise NullKeyError(row=row)
            keys.append(self.codec.dict_key(key))
        return keys, self.codec.hashes(keys)

    def _key(self, element: Any) -> Any:
        if not self._columns:
            return self._select(element)
        parts = tuple(element[column] for column in self._columns)
        return parts[0] if len(parts) == 1 else parts
