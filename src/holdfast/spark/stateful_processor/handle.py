"""What a `StatefulProcessor` asks for its state and timers."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any, Final, Literal

from pyspark.sql.streaming import stateful_processor as spark

from holdfast.errors import ConfigurationError, StateError
from holdfast.runtime.function.user_function import RuntimeContext
from holdfast.spark.stateful_processor.state import ProcessorListState, ProcessorMapState, ProcessorValueState
from holdfast.state.declaration.descriptor import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from holdfast.state.declaration.ttl_config import StateTtlConfig
from holdfast.types.conversion.convert import to_type
from holdfast.types.information.type_information import PickledTypeInformation, RowTypeInformation

TimeMode = Literal["none", "processingtime", "eventtime"]
TIME_MODES: Final = ("none", "processingtime", "eventtime")


class StatefulProcessorHandle(spark.StatefulProcessorHandle):
    """Gives out state and timers of Holdfast in Spark's form.

    Args:
        runtime_context: Of the operator, while it is being opened.
        time_mode: By which time timers fire.
    """

    def __init__(self, runtime_context: RuntimeContext, time_mode: TimeMode) -> None:
        self._runtime = runtime_context
        self._time_mode = time_mode
        self._is_open = False
        self._declared: set[str] = set()
        self._given_up: set[str] = set()
        self.context: Any = None

    def opened(self) -> None:
        """`init` has returned: state is not asked for any more."""
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
        """The states that `init` has deleted."""
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
            raise StateError(f"{what} {name!r} is asked for in init() only, as in Spark.")

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
