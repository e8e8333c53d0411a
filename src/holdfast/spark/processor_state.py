"""The state variables of Spark's `transformWithState`, kept as Holdfast's keyed state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from itertools import repeat
from operator import index
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import stateful_processor as spark

from holdfast.errors import ConfigurationError, OutputTypeError, StateError
from holdfast.runtime.function.user_function import RuntimeContext
from holdfast.state.descriptor import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.state.layout import exact_class
from holdfast.types.arrow import batch_to_elements, element_schema, elements_to_batch
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RowTypeInformation
from holdfast.types.opaque import PickledTypeInformation
from holdfast.types.type_information import AtomicTypeInformation, TypeInformation
from holdfast.types.type_parser import to_type

Convert = Callable[[Any], Any]
Names = tuple[str, ...]

_new = tuple.__new__
TimeMode = Literal["none", "processingtime", "eventtime"]
TIME_MODES: Final = ("none", "processingtime", "eventtime")


@cache
def row_class(columns: Names) -> type[Row]:
    """Return the class of Spark's rows with these columns: like `Row`, but a field is found without a search."""
    fields: dict[str, Any] = {
        name: _tuplegetter(at, f"Field {name}.") for at, name in enumerate(columns) if not hasattr(Row, name)
    }
    return type("Row", (Row,), {**fields, "__fields__": list(columns), "__module__": Row.__module__})


def input_converter(described: TypeInformation) -> Convert | None:
    """Return what converts a value to Spark's rows, where structs are dicts; None if it stays as it is."""
    return _each(described, None, lambda names, values: dict(zip(names, values, strict=True)))


def state_reader(described: TypeInformation) -> Convert | None:
    """Return what converts a value to the form of Spark's state; None if it stays as it is.

    There structs are rows, and instants have no time zone: they are in that of the worker.
    """
    return _each(described, _local, lambda names, values: _new(row_class(names), values))


def state_writer(described: TypeInformation) -> Convert | None:
    """Return what prepares a value for state; None if it stays. An instant without a time zone is in the worker's."""
    return _each(described, _instant, None)


def _each(
    described: TypeInformation, instant: Convert | None, struct: Callable[[Names, Sequence[Any]], Any] | None
) -> Convert | None:
    """Return what converts the parts of a value, and what they are parts of; None where nothing changes.

    Args:
        described: The type.
        instant: Converts instants; None if they stay.
        struct: Makes a struct of its names and values; None for plain sequences.
    """
    convert: Convert | None = None
    if isinstance(described, AtomicTypeInformation):
        if type(described) is AtomicTypeInformation and described.name == "timestamp":
            convert = instant
    elif isinstance(described, RowTypeInformation):
        convert = _of_struct(described, instant, struct)
    elif isinstance(described, ListTypeInformation):
        part = _each(described.element_type, instant, struct)
        if part is not None:
            convert = partial(_listed, part)
    elif isinstance(described, MapTypeInformation):
        # A dict is no key of a map, so where structs become dicts keys stay.
        key = None if instant is None else _each(described.key_type, instant, struct)
        part = _each(described.value_type, instant, struct)
        if key is not None or part is not None:
            convert = partial(_mapped, key or _same, part or _same)
    return None if convert is None else partial(_unless_null, convert)


def _unless_null(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _listed(part: Convert, values: Sequence[Any]) -> list[Any]:
    return [part(value) for value in values]


def _mapped(key: Convert, part: Convert, values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key(at): part(value) for at, value in values.items()}


def _of_struct(
    described: RowTypeInformation, instant: Convert | None, struct: Callable[[Names, Sequence[Any]], Any] | None
) -> Convert | None:
    parts = [_each(part, instant, struct) for part in described.types]
    if struct is None and not any(parts):
        return None
    converts, names, arrange = [part or _same for part in parts], described.names, described.arrange

    def convert(value: Any) -> Any:
        values = tuple([part(item) for part, item in zip(converts, arrange(value), strict=True)])
        return values if struct is None else struct(names, values)

    return convert


def _same(value: Any) -> Any:
    return value


def _local(instant: datetime) -> datetime:
    return instant.astimezone().replace(tzinfo=None)


def _instant(given: Any) -> Any:
    return given.astimezone(UTC) if isinstance(given, datetime) and given.tzinfo is None else given


_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})


# None of these state classes calls the constructor of its Spark base class, which would connect to the JVM.


class DeclaredValues:
    """Checks and converts what a processor writes, and converts what it reads, by the declared fields.

    Args:
        name: Name of the state.
        type_info: The fields.

    Attributes:
        given: Makes the tuple that a processor receives of a row.
    """

    def __init__(self, name: str, type_info: RowTypeInformation) -> None:
        self._name = name
        self._row_type = type_info.row_type
        self._width = len(type_info.names)
        self._classes = tuple(map(exact_class, type_info.types))
        self._only_class = self._classes[0] if self._width == 1 else None
        self._takes = _converting(list(map(state_writer, type_info.types)))
        self.given = _converting(list(map(state_reader, type_info.types))) or tuple

    def __call__(self, value: Sequence[Any]) -> Any:
        """Return a row; a tuple if something has to be checked.

        Numbers of numpy and instants of pandas become Python's, as in Spark.

        Raises:
            StateError: It is no tuple, list or row of as many values as were declared.
        """
        if value.__class__ is tuple:
            if self._only_class is not None:
                if len(value) == 1 and value[0].__class__ is self._only_class:
                    return _new(self._row_type, value)  # in the form that state keeps
            elif tuple(map(type, value)) == self._classes:
                return _new(self._row_type, value)
        if not isinstance(value, tuple | list) or len(value) != self._width:
            fields = f"{self._width} value{'s' if self._width > 1 else ''}"
            raise StateError(f"State {self._name!r} takes a tuple of {fields}, as its schema says, not {value!r}.")
        taken = tuple([one if one.__class__ in _PLAIN else _plain(one) for one in value])
        return taken if self._takes is None else self._takes(taken)


def _converting(parts: list[Convert | None]) -> Callable[[Iterable[Any]], tuple[Any, ...]] | None:
    """Return a function that converts the parts of a row; None if no part needs a conversion."""
    if not any(parts):
        return None
    return lambda row: tuple([one if part is None else part(one) for part, one in zip(parts, row, strict=True)])


def _plain(value: Any) -> Any:
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    item = getattr(value, "item", None)
    return item() if callable(item) and type(value).__module__ == "numpy" and not getattr(value, "ndim", 0) else value


class ProcessorValueState(spark.ValueState):
    """One value for each key.

    Args:
        name: Name of the state.
        handle: Holdfast's value state.
        type_info: Type of its values.
    """

    def __init__(self, name: str, handle: Any, type_info: RowTypeInformation) -> None:
        self._handle = handle
        self._declared = DeclaredValues(name, type_info)

    def exists(self) -> bool:
        return self._handle.value() is not None

    def get(self) -> tuple[Any, ...] | None:
        found = self._handle.value()
        return None if found is None else self._declared.given(found)

    def update(self, newValue: tuple[Any, ...]) -> None:
        self._handle.update(self._declared(newValue))

    def clear(self) -> None:
        self._handle.clear()


class ProcessorListState(spark.ListState):
    """A list of values for each key.

    Args:
        name: Name of the state.
        handle: Holdfast's list state.
        type_info: Type of its values.
    """

    def __init__(self, name: str, handle: Any, type_info: RowTypeInformation) -> None:
        self._name = name
        self._handle = handle
        self._declared = DeclaredValues(name, type_info)

    def exists(self) -> bool:
        return next(iter(self._handle.get() or ()), None) is not None

    def get(self) -> Iterator[tuple[Any, ...]]:
        return map(self._declared.given, list(self._handle.get() or ()))

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        self._handle.update(self._checked(newState))

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._handle.add(self._declared(newState))

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        self._handle.add_all(self._checked(newState))

    def clear(self) -> None:
        self._handle.clear()

    def _checked(self, values: Iterable[Any]) -> list[tuple[Any, ...]]:
        checked = list(map(self._declared, values))
        if not checked:
            raise StateError(f"State {self._name!r}: an empty list is no value, as in Spark; call clear() instead.")
        return checked


class ProcessorMapState(spark.MapState):
    """A map for each key.

    Args:
        name: Name of the state.
        handle: Holdfast's map state.
        key_type: Type of the keys of the map.
        type_info: Type of its values.
    """

    def __init__(self, name: str, handle: Any, key_type: RowTypeInformation, type_info: RowTypeInformation) -> None:
        self._handle = handle
        self._key = DeclaredValues(name, key_type)
        self._declared = DeclaredValues(name, type_info)

    def exists(self) -> bool:
        return not self._handle.is_empty()

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        found = self._handle.get(self._key(key))
        return None if found is None else self._declared.given(found)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return bool(self._handle.contains(self._key(key)))

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._handle.put(self._key(key), self._declared(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        of_key, of_value = self._key.given, self._declared.given
        return ((of_key(key), of_value(value)) for key, value in list(self._handle.items()))

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return map(self._key.given, list(self._handle.keys()))

    def values(self) -> Iterator[tuple[Any, ...]]:
        return map(self._declared.given, list(self._handle.values()))

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._handle.remove(self._key(key))

    def clear(self) -> None:
        self._handle.clear()


class StatefulProcessorHandle(spark.StatefulProcessorHandle):
    """Returns state and timers of Holdfast in Spark's form.

    Args:
        runtime_context: Context of the operator, while it is being opened.
        time_mode: The time domain of timers.
    """

    def __init__(self, runtime_context: RuntimeContext, time_mode: TimeMode) -> None:
        self._runtime = runtime_context
        self._time_mode = time_mode
        self._is_open = False
        self._declared: set[str] = set()
        self._given_up: set[str] = set()
        self.context: Any = None

    def opened(self) -> None:
        """Reject further requests for state: `init` has returned."""
        self._is_open = True

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ProcessorValueState:
        values = _columns(schema, stateName)
        descriptor: ValueStateDescriptor[Any] = ValueStateDescriptor(stateName, values)
        self._declare(descriptor, ttlDurationMs)
        return ProcessorValueState(stateName, self._runtime.get_state(descriptor), values)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ProcessorListState:
        values = _columns(schema, stateName)
        descriptor: ListStateDescriptor[Any] = ListStateDescriptor(stateName, values)
        self._declare(descriptor, ttlDurationMs)
        return ProcessorListState(stateName, self._runtime.get_list_state(descriptor), values)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> ProcessorMapState:
        keys, values = _columns(userKeySchema, stateName), _columns(valueSchema, stateName)
        descriptor: MapStateDescriptor[Any, Any] = MapStateDescriptor(stateName, keys, values)
        self._declare(descriptor, ttlDurationMs)
        return ProcessorMapState(stateName, self._runtime.get_map_state(descriptor), keys, values)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        timers, time = self._timers("registerTimer"), index(expiryTimestampMs)
        if self._time_mode == "eventtime":
            timers.register_event_time_timer(time)
        else:
            timers.register_processing_time_timer(time)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        timers, time = self._timers("deleteTimer"), index(expiryTimestampMs)
        if self._time_mode == "eventtime":
            timers.delete_event_time_timer(time)
        else:
            timers.delete_processing_time_timer(time)

    def listTimers(self) -> Iterator[int]:
        timers = self._timers("listTimers")
        if self._time_mode == "eventtime":
            return iter(timers.event_time_timers())
        return iter(timers.processing_time_timers())

    def deleteIfExists(self, stateName: str) -> None:
        self._in_init("deleteIfExists() of state", stateName)
        self._given_up.add(stateName)
        self._not_both(stateName)

    @property
    def given_up(self) -> tuple[str, ...]:
        """The states that `init` deleted."""
        return tuple(sorted(self._given_up))

    def _declare(self, descriptor: StateDescriptor[Any], ttl: int | None) -> None:
        self._in_init("State", descriptor.name)
        if descriptor.name in self._declared:
            raise ConfigurationError(f"init() asks for state {descriptor.name!r} twice")
        self._declared.add(descriptor.name)
        self._not_both(descriptor.name)
        if ttl is None:
            return
        if self._time_mode != "processingtime":
            raise ConfigurationError(
                f"state {descriptor.name!r} has a time to live, which needs timeMode 'ProcessingTime', as in Spark"
            )
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(ttl).build())

    def _not_both(self, name: str) -> None:
        if name in self._declared & self._given_up:
            raise ConfigurationError(
                f"init() asks for state {name!r} and deletes it, which would delete it at each start: "
                "give the new state another name"
            )

    def _in_init(self, what: str, name: str) -> None:
        if self._is_open:
            raise StateError(f"{what} {name!r} is allowed in init() only, as in Spark.")

    def _timers(self, call: str) -> Any:
        if self._time_mode == "none":
            raise ConfigurationError(f"{call}() needs timeMode 'ProcessingTime' or 'EventTime', as in Spark")
        if self.context is None:
            raise StateError(f"{call}() is about the current key, and there is none in init().")
        return self.context.timer_service()


def _columns(schema: Any, name: str) -> RowTypeInformation:
    columns = to_type(schema)
    if isinstance(columns, PickledTypeInformation):
        raise ConfigurationError(f"state {name!r}: its schema is 'name type, ...', not {schema!r}")
    # A type alone is that of one column, as `TwsTester` takes it.
    return columns if isinstance(columns, RowTypeInformation) else RowTypeInformation(["value"], [columns])


class RowForm(ABC):
    """Converts between the elements of an operator and what a processor works with."""

    @abstractmethod
    def given(self, rows: Sequence[Any], columns: tuple[str, ...]) -> Iterator[Any]:
        """Return the rows of a key for the processor."""

    @abstractmethod
    def initial(self, rows: Sequence[Any]) -> Iterator[Any]:
        """Return the rows of initial state of a key for the processor, one after the other."""

    @abstractmethod
    def emitted(self, returned: Any) -> Iterable[Any]:
        """Return the elements of what the processor returned."""


class SparkRows(RowForm):
    """Rows are `pyspark.sql.Row`, in and out.

    Args:
        input_type: Type of the input rows.
        initial_type: Type of the rows of initial state; None if there are none.
    """

    def __init__(self, input_type: RowTypeInformation, initial_type: RowTypeInformation | None) -> None:
        self._structs = _structs(input_type)
        self._initial_structs = [] if initial_type is None else _structs(initial_type)

    def given(self, rows: Sequence[Any], columns: tuple[str, ...]) -> Iterator[Row]:
        if self._structs:
            rows = [_converted(row, self._structs) for row in rows]
        if len(rows) == 1:
            return iter((_new(row_class(columns), rows[0]),))
        return map(_new, repeat(row_class(columns)), rows)

    def initial(self, rows: Sequence[Any]) -> Iterator[Row]:
        return (_new(row_class(type(row)._names), _converted(row, self._initial_structs)) for row in rows)

    def emitted(self, returned: Any) -> Iterable[Any]:
        return () if returned is None else returned


class PandasFrames(RowForm):
    """Rows are frames of pandas, as in `transformWithStateInPandas`.

    Args:
        input_type: Type of the input rows.
        initial_type: Type of the rows of initial state; None if there are none.
        output_type: Type of what the processor returns.
    """

    def __init__(
        self, input_type: RowTypeInformation, initial_type: RowTypeInformation | None, output_type: RowTypeInformation
    ) -> None:
        self._input_type = input_type
        self._initial_type = initial_type
        self._output_type = output_type

    def given(self, rows: Sequence[Any], columns: tuple[str, ...]) -> Iterator[Any]:
        return iter([_frame(rows, self._input_type)])

    def initial(self, rows: Sequence[Any]) -> Iterator[Any]:
        assert self._initial_type is not None
        return iter([_frame(rows, self._initial_type)] if rows else [])

    def emitted(self, returned: Any) -> Iterable[Any]:
        schema = element_schema(self._output_type)
        for frame in () if returned is None else returned:
            if not hasattr(frame, "columns"):
                raise OutputTypeError(
                    "", f"It returned {type(frame).__name__!r}, not frames of pandas.", declared=str(self._output_type)
                )
            if not len(frame):  # as pd.DataFrame() has it, which has no columns either
                continue
            table = pa.RecordBatch.from_pandas(frame, schema=schema, preserve_index=False)
            yield from batch_to_elements(table, self._output_type)


def _structs(row_type: RowTypeInformation) -> list[tuple[int, Convert]]:
    """Return the positions of columns with structs, and their converters."""
    found = ((at, input_converter(part)) for at, part in enumerate(row_type.types))
    return [(at, convert) for at, convert in found if convert is not None]


def _converted(row: Sequence[Any], structs: list[tuple[int, Convert]]) -> Sequence[Any]:
    values = list(row)
    for at, convert in structs:
        values[at] = convert(values[at])
    return values


def _frame(rows: Sequence[Any], row_type: RowTypeInformation) -> Any:
    """Return a frame as Spark makes it: instants are without a time zone, in UTC."""
    frame = elements_to_batch(list(rows), row_type, "").to_pandas(date_as_object=True, maps_as_pydicts="strict")
    for name, type_ in zip(row_type.names, element_schema(row_type).types, strict=True):
        if pa.types.is_timestamp(type_) and type_.tz is not None:
            frame[name] = frame[name].dt.tz_convert("UTC").dt.tz_localize(None)
    return frame
