"""Check what a program passes to an operation of a stream, and make the specification of an operator of it.

A mistake in a program should fail where it is written, and not minutes later in a task.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.kernel.secret import get_logger
from holdfast.kernel.watermark import ColumnTimestampAssigner, WatermarkStrategy
from holdfast.runtime.function.user_function import (
    BaseBroadcastProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
)
from holdfast.runtime.graph.stream_graph import KeySpec, OperatorSpec, Shape
from holdfast.state.descriptor import ReduceFunction
from holdfast.types.composite import RowTypeInformation
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type

logger = get_logger(__name__)

_METHODS: dict[str, tuple[str, type[Any], str]] = {
    "map": ("map", MapFunction, "a MapFunction, or a function value -> value"),
    "flat_map": ("flat_map", FlatMapFunction, "a FlatMapFunction, or a function value -> iterable"),
    "filter": ("filter", FilterFunction, "a FilterFunction, or a function value -> bool"),
    "process": ("process_element", ProcessFunction, "a ProcessFunction, or a generator function (value, ctx)"),
    "reduce": ("reduce", ReduceFunction, "a ReduceFunction, or a function (value, value) -> value"),
}
_FUNCTIONS = (Function, ReduceFunction)


def operator_spec(
    shape: Shape, function: Any, input_type: TypeInformation, output_type: Any, *, keyed: bool
) -> OperatorSpec:
    """Return the specification of one operator.

    Args:
        shape: How the function is called.
        function: The argument of the program.
        input_type: Type of the elements it gets.
        output_type: The declared type, or None. Filter and reduce keep the type of their input.
        keyed: Whether the stream is keyed.

    Raises:
        ConfigurationError: The function does not fit the operation, or the type is unknown.
    """
    check_function(shape, function, keyed)
    kept = shape in ("filter", "reduce")
    element_type = input_type if kept else declared_type(output_type, shape)
    return OperatorSpec(function, shape, keyed, input_type, element_type)


def check_function(shape: Shape, function: Any, keyed: bool) -> None:
    """Check that a function can be called as an operation calls it.

    Raises:
        ConfigurationError: It cannot; the message has what the operation takes.
    """
    method, _, expected = _METHODS[shape]
    if keyed and shape == "process":
        expected = "a KeyedProcessFunction, or a generator function (value, ctx)"
    if isinstance(function, type):
        raise ConfigurationError(f"{shape}() takes an instance, not the class: write {function.__name__}().")
    if not keyed and isinstance(function, KeyedProcessFunction):
        raise ConfigurationError(
            f"process() of a stream without keys takes a ProcessFunction; {type(function).__name__} is a "
            "KeyedProcessFunction: call key_by() before process()."
        )
    if isinstance(function, BaseBroadcastProcessFunction):
        raise ConfigurationError(
            f"{type(function).__name__} is a function of two streams: connect the stream with a broadcast one first, "
            "stream.connect(rules.broadcast(descriptor)).process(...)."
        )
    called = getattr(function, method, None)
    if not callable(called):
        if isinstance(function, _FUNCTIONS) or not callable(function):
            raise ConfigurationError(f"{shape}() takes {expected}, not {_describe(function)}.")
        _check_arity(shape, function, 2 if shape in ("process", "reduce") else 1)
        called = function
    if inspect.isgeneratorfunction(called):
        _check_generator(shape, called)


def _check_generator(shape: Shape, function: Any) -> None:
    if shape not in ("flat_map", "process"):
        instead = ": call flat_map(), which emits each element that it yields" if shape == "map" else ""
        raise ConfigurationError(f"{shape}() takes a function that returns, but {_describe(function)} yields{instead}.")
    if _returns_value(function):
        logger.warning(
            "%s yields, so Python drops the value of its `return`: write `yield` in place of `return`, and `return` "
            "alone to end",
            _describe(function),
        )


def bound_function(where: str, given: Any, kind: type[Any], method: str, arguments: int) -> Callable[..., Any]:
    """Return what an operation calls: the method of a function object of a kind, or a plain callable.

    Raises:
        ConfigurationError: It is neither, or takes another number of arguments.
    """
    if isinstance(given, type):
        raise ConfigurationError(f"{where}() takes an instance, not the class: write {given.__name__}().")
    if isinstance(given, kind):
        return getattr(given, method)  # type: ignore[no-any-return]
    if not callable(given):
        raise ConfigurationError(f"{where}() takes a {kind.__name__}, or a function, not {_describe(given)}.")
    _check_arity(where, given, arguments)
    return given  # type: ignore[no-any-return]


def declared_type(output_type: Any, where: str) -> TypeInformation:
    """Return a declared type: type information, DDL of a type or of columns, an Arrow or a Spark type.

    Raises:
        ConfigurationError: It is none of these.
    """
    try:
        return to_type(output_type)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{where}(): {error} A type is written as 'bigint', columns as 'key string, n bigint'."
        ) from error


def key_spec(key: Any, key_type: Any, order_by: Any, input_type: TypeInformation) -> KeySpec:
    """Return how a stream is partitioned by the arguments of `key_by`.

    Args:
        key: A column name, several of them, a `KeySelector`, or a function.
        key_type: Type of what a selector returns; None for untyped Python keys.
        order_by: A column name or several of them.
        input_type: Type of the stream's elements.

    Raises:
        ConfigurationError: A column does not exist, or the arguments do not go together.
    """
    order = order_columns(order_by, input_type)
    if isinstance(key, type):
        raise ConfigurationError(f"key_by() takes an instance, not the class: write {key.__name__}().")
    if isinstance(key, KeySelector) or (callable(key) and not isinstance(key, str)):
        return KeySpec(selector=_selector(key), key_type=_selector_type(key_type), order_by=order)
    columns = _names(key, "key_by()")
    if not columns:
        raise ConfigurationError("key_by() needs at least one column; without a key there is no keyed stream.")
    _check_columns(columns, "key_by()", input_type)
    _check_key_type(columns, key_type, input_type)
    return KeySpec(columns=columns, order_by=order)


def order_columns(order_by: Any, input_type: TypeInformation) -> tuple[str, ...]:
    """Return the columns by which rows of one key are ordered.

    Raises:
        ConfigurationError: A column does not exist.
    """
    columns = _names(order_by, "order_by")
    if columns:
        _check_columns(columns, "order_by", input_type)
    return columns


def check_timestamp_column(strategy: WatermarkStrategy, input_type: TypeInformation) -> None:
    """Check that an assigner that reads timestamps from a column finds timestamps there.

    Raises:
        ConfigurationError: The column does not exist, or is of another type.
    """
    assigner = strategy.assigner
    if not isinstance(assigner, ColumnTimestampAssigner):
        return
    _check_columns((assigner.column,), "ColumnTimestampAssigner", input_type)
    assert isinstance(input_type, RowTypeInformation)
    kind = dict(zip(input_type.names, input_type.types, strict=True))[assigner.column].arrow_type
    if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
        raise ConfigurationError(
            f"ColumnTimestampAssigner: column {assigner.column!r} is {kind}, not whole milliseconds or timestamps."
        )


def _selector(key: Any) -> Callable[[Any], Any]:
    if isinstance(key, KeySelector):
        return key.get_key
    _check_arity("key_by", key, 1)
    return key  # type: ignore[no-any-return]


def _selector_type(key_type: Any) -> TypeInformation | None:
    return None if key_type is None else declared_type(key_type, "key_by")


def _names(names: Any, where: str) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    if isinstance(names, Iterable):
        found = tuple(names)
        if all(isinstance(name, str) for name in found):
            if len(set(found)) < len(found):
                raise ConfigurationError(f"{where} names a column twice: {list(found)!r}.")
            return found
    raise ConfigurationError(f"{where} takes column names, a KeySelector or a function, not {names!r}.")


def _check_columns(columns: tuple[str, ...], where: str, input_type: TypeInformation) -> None:
    if not isinstance(input_type, RowTypeInformation):
        raise ConfigurationError(
            f"{where} names the columns {list(columns)!r}, but the elements of this stream are {input_type.ddl!r} and "
            "have no columns: declare output_type='name type, ...' at the operator before it, or key by a function."
        )
    known = input_type.get_field_names()
    missing = [column for column in columns if column not in known]
    if missing:
        raise ConfigurationError(f"{where}: there is no column {missing[0]!r}; the stream has {list(known)!r}.")


def _check_key_type(columns: tuple[str, ...], key_type: Any, input_type: TypeInformation) -> None:
    if key_type is None:
        return
    assert isinstance(input_type, RowTypeInformation)
    if isinstance(key_type, str) and key_type in input_type.get_field_names():
        names = [*columns, key_type]
        raise ConfigurationError(f"key_by() takes several columns as one list: key_by({names!r}).")
    types = dict(zip(input_type.get_field_names(), input_type.get_field_types(), strict=True))
    declared = declared_type(key_type, "key_by")
    if len(columns) == 1 and declared != types[columns[0]]:
        raise ConfigurationError(
            f"key_by({columns[0]!r}): key_type is {declared.ddl!r}, but the column is {types[columns[0]].ddl!r}; leave "
            "key_type out, a column has its own type."
        )


def _check_arity(where: str, function: Any, count: int) -> None:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as error:
        raise ConfigurationError(
            f"The function {_describe(function)} given to {where}() is called with {count} argument"
            f"{'s' if count > 1 else ''}, which it does not take: {error}"
        ) from error
    except ValueError:
        return  # a builtin without a signature


def _returns_value(function: Any) -> bool:
    """Return whether a generator function has a `return` with a value other than None."""
    before = None
    for instruction in dis.get_instructions(function):
        name = instruction.opname
        if name == "RETURN_CONST" and instruction.argval is not None:
            return True
        if name == "RETURN_VALUE" and not (before and before.opname == "LOAD_CONST" and before.argval is None):
            return True
        before = instruction
    return False


def _describe(function: Any) -> str:
    name = getattr(function, "__qualname__", None)
    return repr(name) if name else f"a {type(function).__name__}"
