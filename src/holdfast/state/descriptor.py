"""State descriptors with what they are made of: state functions (reduce, aggregate, fold), time to live, and kinds.

Where a state function is expected, a plain callable or any object with the same methods works as well. The type of a
value is anything that `holdfast.types.type_parser.to_type` accepts (type information, DDL, a Python class), or a
`TypeSerializer`. Values without a type are pickled: this works for every object, costs about a microsecond per access
unless it is a number or text, and only Python can read it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Final, Generic, TypeVar

from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.configuration import parse_duration
from holdfast.types.key_codec import key_codec_for
from holdfast.types.serializer import TypeSerializer
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type

_LONGEST: Final = 2**63 - 1
"""The longest time to live in milliseconds: stamps in files are 64-bit integers."""
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")
RESERVED_PREFIX: Final = "_timer_state/"
"""Prefix of the timer segments of an operator, which are in the same files as its state."""


class _OpenClose:
    """Hooks for subclasses; states call neither."""

    def open(self, runtime_context: Any) -> None:
        """Prepare the function."""

    def close(self) -> None:
        """Release resources of `open`."""


class ReduceFunction(_OpenClose, ABC):
    """Combines two elements into one of the same type.

    >>> class Sum(ReduceFunction):
    ...     def reduce(self, value1, value2):
    ...         return value1 + value2
    >>> numbers = env.from_collection([3, 1, 3], "bigint").key_by(lambda n: 0)
    >>> list(numbers.reduce(Sum()).execute_and_collect())
    [3, 4, 7]
    """

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Return the combination of the current value and a new element.

        Args:
            value1: The current value.
            value2: The new element.
        """


class AggregateFunction(_OpenClose, ABC):
    """Collects elements in an accumulator and computes a result from it, which may have another type.

    >>> class Mean(AggregateFunction):
    ...     def create_accumulator(self):
    ...         return 0, 0
    ...
    ...     def add(self, value, accumulator):
    ...         return accumulator[0] + value, accumulator[1] + 1
    ...
    ...     def get_result(self, accumulator):
    ...         return accumulator[0] / accumulator[1]
    ...
    ...     def merge(self, acc_a, acc_b):
    ...         return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]
    >>> windows = env.from_collection([1, 2, 5, 7], "bigint").count_window_all(2)
    >>> list(windows.aggregate(Mean(), output_type="double").execute_and_collect())
    [1.5, 6.0]
    """

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return an empty accumulator."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Return the accumulator with one more element.

        Args:
            value: The element.
            accumulator: The accumulator; it may be changed and returned.
        """

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result of an accumulator without changing it."""

    @abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Return an accumulator with the elements of two accumulators, which may be changed."""


class FoldFunction(ABC):
    """Adds elements to an accumulator that starts from an initial value.

    >>> class Text(FoldFunction):
    ...     def fold(self, accumulator, value):
    ...         return f"{accumulator}{value}"
    >>> FoldingStateDescriptor("text", "", Text(), "string").fold("kelp", 7)
    'kelp7'
    """

    @abstractmethod
    def fold(self, accumulator: Any, value: Any) -> Any:
        """Return the accumulator with one more element."""


def method_or_callable(function: Any, method: str, what: str) -> Callable[..., Any]:
    """Return the method of a function object, or the plain callable itself.

    Raises:
        ConfigurationError: It is neither.
    """
    bound = getattr(function, method, None)
    if callable(bound):
        return bound  # type: ignore[no-any-return]
    if callable(function) and not isinstance(function, type):
        return function  # type: ignore[no-any-return]
    raise ConfigurationError(f"{what} needs an object with a method {method}(), or a callable, not {function!r}.")


@dataclass(frozen=True)
class CleanupStrategies:
    """How expired state is removed besides on read.

    Attributes:
        in_background: Whether the default cleanup runs: at each snapshot, and in compaction.
        full_snapshot: Whether merges of all runs, the equivalent of full snapshots, drop expired entries.
        incremental_size: Entries to check per key that an epoch touches; None for a default number per snapshot.
        incremental_for_every_record: Whether to count records that touch no state. It has no effect: every record
            touches its key.
        compaction_query_entries: Accepted for Flink's API: a compaction reads the time once.
    """

    in_background: bool = True
    full_snapshot: bool = False
    incremental_size: int | None = None
    incremental_for_every_record: bool = False
    compaction_query_entries: int | None = None

    def is_cleanup_in_background(self) -> bool:
        """Return whether the default cleanup runs."""
        return self.in_background

    def in_full_snapshot(self) -> bool:
        """Return whether merges of all runs drop expired entries."""
        return self.full_snapshot

    @property
    def in_compaction(self) -> bool:
        """Whether compaction drops expired entries: by default, or because a strategy that does is set."""
        return self.in_background or self.full_snapshot or self.compaction_query_entries is not None


def last_expired_stamp(now: int, time_to_live: int) -> int:
    """Return the greatest time of last use that has expired; later ones are kept. All times are milliseconds.

    Tasks apply it in `hashmap/handles.py`, compaction when it merges the oldest run.
    """
    return now - time_to_live


@dataclass(frozen=True)
class StateTtlConfig:
    """Time to live of a state. Create one with `StateTtlConfig.new_builder(ttl).build()`.

    Time is the processing time: that of the epoch, or in real time the current one. Expired state is removed when it is
    read and, a part of the loaded keys at a time, when the subtask takes its snapshot. Compaction drops the rest.

    >>> ttl = StateTtlConfig.new_builder("10 min").update_ttl_on_read_and_write().build()
    >>> count = ValueStateDescriptor("count", "bigint")
    >>> count.enable_time_to_live(ttl)
    >>> count.get_ttl_config().get_ttl()
    600000

    Attributes:
        ttl: Milliseconds after the last use at which the state expires.
        update_type: Which accesses count as a use.
        state_visibility: Whether a read may return expired state.
        cleanup_strategies: How expired state is removed that nobody reads.
    """

    class UpdateType(Enum):
        """Which accesses restart the time to live."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether a read returns expired state that is not removed yet."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """The clock of the time to live; only processing time exists."""

        ProcessingTime = 0

    DISABLED: ClassVar[StateTtlConfig]

    ttl: int
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    state_visibility: StateVisibility = StateVisibility.NeverReturnExpired
    cleanup_strategies: CleanupStrategies = CleanupStrategies()

    @staticmethod
    def new_builder(ttl: Any) -> StateTtlConfig.Builder:
        """Return a builder with the default settings.

        Args:
            ttl: Milliseconds, a `datetime.timedelta`, text such as ``"10 min"``, or an object with `to_milliseconds()`.

        Raises:
            ConfigurationError: The argument is not a duration, or not positive.
        """
        return StateTtlConfig.Builder(ttl)

    def is_enabled(self) -> bool:
        """Return whether the state expires."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled

    def get_ttl(self) -> int:
        """Return the time to live in milliseconds."""
        return self.ttl

    def get_update_type(self) -> UpdateType:
        """Return which accesses count as a use."""
        return self.update_type

    def get_state_visibility(self) -> StateVisibility:
        """Return whether a read may return expired state."""
        return self.state_visibility

    def get_ttl_time_characteristic(self) -> TtlTimeCharacteristic:
        """Return the clock, which is always processing time."""
        return StateTtlConfig.TtlTimeCharacteristic.ProcessingTime

    def get_cleanup_strategies(self) -> CleanupStrategies:
        """Return how expired state is removed that nobody reads."""
        return self.cleanup_strategies

    class Builder:
        """Builder of a `StateTtlConfig`. Every method except `build` returns the builder."""

        def __init__(self, ttl: Any) -> None:
            self._config = StateTtlConfig(_milliseconds(ttl))

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfig.Builder:
            """Set which accesses count as a use."""
            return self._with(update_type=update_type)

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Count writes as a use. This is the default."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Count reads and writes as a use."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Set whether a read may return expired state."""
            return self._with(state_visibility=state_visibility)

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Return expired state once, from the read that removes it."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Never return expired state. This is the default."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(
            self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
        ) -> StateTtlConfig.Builder:
            """Set the clock.

            Raises:
                ConfigurationError: The clock is not processing time.
            """
            if ttl_time_characteristic is not StateTtlConfig.TtlTimeCharacteristic.ProcessingTime:
                raise ConfigurationError(
                    f"The time to live uses processing time; {ttl_time_characteristic!r} is not supported."
                )
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Use processing time, the only clock."""
            return self

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Drop expired entries when all runs of a key are merged, the equivalent of a full snapshot."""
            return self._cleanup(full_snapshot=True)

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool = False
        ) -> StateTtlConfig.Builder:
            """Check a number of entries for each key that an epoch touches.

            Args:
                cleanup_size: How many entries.
                run_cleanup_for_every_record: Accepted; every record touches its key.

            Raises:
                ConfigurationError: The number is not positive.
            """
            if cleanup_size <= 0:
                raise ConfigurationError(
                    f"The cleanup size must be a positive number of entries, not {cleanup_size!r}."
                )
            return self._cleanup(
                incremental_size=cleanup_size, incremental_for_every_record=run_cleanup_for_every_record
            )

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int = 1000, periodic_compaction_time: Any = None
        ) -> StateTtlConfig.Builder:
            """Drop expired entries in compaction, with any backend.

            Args:
                query_time_after_num_entries: Accepted; a compaction reads the time once.
                periodic_compaction_time: Accepted; runs are compacted by their number, not by their age.
            """
            return self._cleanup(compaction_query_entries=query_time_after_num_entries)

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Remove expired state only on read, and by strategies that are set explicitly."""
            return self._cleanup(in_background=False)

        def set_ttl(self, ttl: Any) -> StateTtlConfig.Builder:
            """Set the time to live; see `StateTtlConfig.new_builder`."""
            return self._with(ttl=_milliseconds(ttl))

        def build(self) -> StateTtlConfig:
            """Return the configuration."""
            return self._config

        def _with(self, **changes: Any) -> StateTtlConfig.Builder:
            self._config = replace(self._config, **changes)
            return self

        def _cleanup(self, **changes: Any) -> StateTtlConfig.Builder:
            return self._with(cleanup_strategies=replace(self._config.cleanup_strategies, **changes))


def _milliseconds(ttl: Any) -> int:
    for method in ("to_milliseconds", "to_millis"):
        convert = getattr(ttl, method, None)
        if callable(convert):
            ttl = convert()
            break
    milliseconds = parse_duration(ttl)
    if milliseconds <= 0:
        raise ConfigurationError(f"The time to live must be positive, not {ttl!r}.")
    return min(milliseconds, _LONGEST)


StateTtlConfig.DISABLED = StateTtlConfig(_LONGEST, StateTtlConfig.UpdateType.Disabled)


_IMMUTABLE: Final = frozenset({type(None), bool, int, float, str, bytes})


class StateKind(Enum):
    """Kind of a state; the value is part of the file format."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    FOLDING = "folding"


class StateDescriptor(ABC, Generic[T]):
    """Name, kind and type of a state. Two descriptors are equal if name and kind are.

    Args:
        name: Unique within the operator, not empty; names that begin with `_timer_state/` are reserved for timers.
        type_info: Type of the value, see the module; None for pickled values.
        default_value: Reading absent state returns a copy of it; only value states have one.

    Raises:
        ConfigurationError: The name is empty, not a text, or reserved.
    """

    KIND: ClassVar[StateKind]

    def __init__(self, name: str, type_info: Any = None, default_value: T | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"The name of a state must be a non-empty text, not {name!r}.")
        if name.startswith(RESERVED_PREFIX):
            raise ConfigurationError(
                f"State name {name!r} is reserved for timers. Use one that does not begin with {RESERVED_PREFIX!r}."
            )
        self.name = name
        self._type = to_type(type_info)
        self._serializer: TypeSerializer[T] | None = type_info if isinstance(type_info, TypeSerializer) else None
        self._default_value = default_value
        self._queryable_name: str | None = None
        self._ttl = StateTtlConfig.DISABLED

    @property
    def kind(self) -> StateKind:
        return self.KIND

    @property
    def type_info(self) -> TypeInformation:
        """Type of the value, element, or accumulator."""
        return self._type

    @property
    def ttl_config(self) -> StateTtlConfig:
        """Time to live of the state."""
        return self._ttl

    @property
    def queryable_state_name(self) -> str | None:
        """Name under which the state can be queried, None if it cannot."""
        return self._queryable_name

    def get_name(self) -> str:
        """Return the name."""
        return self.name

    def get_type(self) -> StateKind:
        """Return the kind."""
        return self.KIND

    def get_default_value(self) -> T | None:
        """Return a copy of the default value, None without one."""
        default = self._default_value
        return default if type(default) in _IMMUTABLE else copy.deepcopy(default)

    def has_default_value(self) -> bool:
        """Return whether the state has a default value other than None."""
        return self._default_value is not None

    def get_serializer(self) -> TypeSerializer[T]:
        """Return the serializer of the value."""
        if self._serializer is None:
            self._serializer = self._type.create_serializer()
        return self._serializer

    def is_serializer_initialized(self) -> bool:
        """Return whether the serializer is set or created."""
        return self._serializer is not None

    def initialize_serializer_unless_set(self, serializer: Any = None) -> None:
        """Create the serializer if there is none.

        Args:
            serializer: A `TypeSerializer` to use if none is set yet. Other arguments, such as an execution
                configuration, are accepted and ignored.
        """
        if self._serializer is None and isinstance(serializer, TypeSerializer):
            self._type, self._serializer = to_type(serializer), serializer
        self.get_serializer()

    def set_queryable(self, queryable_state_name: str) -> None:
        """Make the state queryable.

        Args:
            queryable_state_name: The name under which clients query it.

        Raises:
            StateError: The state is queryable already.
            ConfigurationError: The state has a time to live.
        """
        if self._queryable_name is not None:
            raise StateError(f"State {self.name!r} is queryable as {self._queryable_name!r} already.")
        if self._ttl.is_enabled():
            raise ConfigurationError(
                f"State {self.name!r} has a time to live, so it cannot be queryable. Remove one of both."
            )
        self._queryable_name = queryable_state_name

    def is_queryable(self) -> bool:
        """Return whether the state can be queried."""
        return self._queryable_name is not None

    def get_queryable_state_name(self) -> str | None:
        """Return the name under which the state can be queried, None if it cannot."""
        return self._queryable_name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Set the time to live.

        Raises:
            ConfigurationError: The state is queryable.
        """
        if ttl_config.is_enabled() and self._queryable_name is not None:
            raise ConfigurationError(
                f"State {self.name!r} is queryable, so it cannot have a time to live. Remove one of both."
            )
        self._ttl = ttl_config

    def get_ttl_config(self) -> StateTtlConfig:
        """Return the time to live."""
        return self._ttl

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, StateDescriptor) and other.name == self.name

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class ValueStateDescriptor(StateDescriptor[T]):
    """One value per key.

    >>> count = ValueStateDescriptor("count", "bigint", 0)
    >>> count.get_default_value()
    0

    Args:
        name: Name of the state; see `StateDescriptor`.
        value_type_info: Type of the value.
        default_value: Reading absent state returns a copy of it.
    """

    KIND = StateKind.VALUE

    def __init__(self, name: str, value_type_info: Any = None, default_value: T | None = None) -> None:
        super().__init__(name, value_type_info, default_value)


class ListStateDescriptor(StateDescriptor[T]):
    """A list per key.

    >>> seen = ListStateDescriptor("seen", "bigint")
    >>> seen.get_type()
    <StateKind.LIST: 'list'>

    Args:
        name: Name of the state; see `StateDescriptor`.
        elem_type_info: Type of an element.
    """

    KIND = StateKind.LIST

    def __init__(self, name: str, elem_type_info: Any = None) -> None:
        super().__init__(name, elem_type_info)


class MapStateDescriptor(StateDescriptor[Any], Generic[K, V]):
    """A map per key.

    >>> counts = MapStateDescriptor("counts", "string", "bigint")
    >>> counts.key_type_info, counts.type_info
    (<string>, <bigint>)

    Args:
        name: Name of the state; see `StateDescriptor`.
        key_type_info: Type of a map key, not a serializer. None allows the plain Python values that `key_by` accepts
            without a `key_type`.
        value_type_info: Type of a value.

    Raises:
        ConfigurationError: The type cannot be used for map keys.
    """

    KIND = StateKind.MAP

    def __init__(self, name: str, key_type_info: Any = None, value_type_info: Any = None) -> None:
        super().__init__(name, value_type_info)
        if isinstance(key_type_info, TypeSerializer):
            raise ConfigurationError(
                f"The keys of map state {name!r} need a type, such as 'string', and cannot have a serializer: the "
                "entries of a map are found by the canonical bytes of their keys."
            )
        self.key_type_info: TypeInformation | None = None if key_type_info is None else to_type(key_type_info)
        try:
            key_codec_for(self.key_type_info)
        except ConfigurationError as error:
            raise ConfigurationError(f"The keys of map state {name!r}: {error}") from error


class ReducingStateDescriptor(StateDescriptor[T]):
    """A value per key into which elements are reduced.

    >>> total = ReducingStateDescriptor("total", lambda one, other: one + other, "bigint")
    >>> total.reduce(2, 3)
    5

    Args:
        name: Name of the state; see `StateDescriptor`.
        reduce_function: A `ReduceFunction`, or a callable of two elements.
        type_info: Type of the value.

    Raises:
        ConfigurationError: The function is neither.
    """

    KIND = StateKind.REDUCING

    def __init__(self, name: str, reduce_function: Any, type_info: Any = None) -> None:
        super().__init__(name, type_info)
        self.reduce_function = reduce_function
        self.reduce: Callable[[T, T], T] = method_or_callable(reduce_function, "reduce", f"Reducing state {name!r}")

    def get_reduce_function(self) -> Any:
        """Return the function."""
        return self.reduce_function


class AggregatingStateDescriptor(StateDescriptor[ACC], Generic[IN, ACC, OUT]):
    """An accumulator per key.

    >>> class Mean(AggregateFunction):
    ...     def create_accumulator(self):
    ...         return 0, 0
    ...
    ...     def add(self, value, accumulator):
    ...         return accumulator[0] + value, accumulator[1] + 1
    ...
    ...     def get_result(self, accumulator):
    ...         return accumulator[0] / accumulator[1]
    ...
    ...     def merge(self, acc_a, acc_b):
    ...         return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]
    >>> mean = AggregatingStateDescriptor("mean", Mean())
    >>> mean.get_agg_function().get_result((6, 3))
    2.0

    Args:
        name: Name of the state; see `StateDescriptor`.
        agg_function: An `AggregateFunction`, or an object with its methods.
        state_type_info: Type of the accumulator.

    Raises:
        ConfigurationError: The function has not all methods.
    """

    KIND = StateKind.AGGREGATING

    def __init__(self, name: str, agg_function: Any, state_type_info: Any = None) -> None:
        super().__init__(name, state_type_info)
        for method in ("create_accumulator", "add", "get_result", "merge"):
            if not callable(getattr(agg_function, method, None)):
                raise ConfigurationError(
                    f"Aggregating state {name!r} needs an AggregateFunction; {agg_function!r} has no method {method}()."
                )
        self.agg_function = agg_function

    def get_agg_function(self) -> Any:
        """Return the function."""
        return self.agg_function


class FoldingStateDescriptor(StateDescriptor[ACC], Generic[IN, ACC]):
    """An accumulator per key that starts from an initial value.

    >>> text = FoldingStateDescriptor("text", "", lambda text, n: f"{text}{n}", "string")
    >>> text.fold("kelp", 7)
    'kelp7'

    Args:
        name: Name of the state; see `StateDescriptor`.
        initial_value: The accumulator before the first element; each key starts from a copy.
        fold_function: A `FoldFunction`, or a callable of accumulator and element.
        type_info: Type of the accumulator.

    Raises:
        ConfigurationError: The function is neither.
    """

    KIND = StateKind.FOLDING

    def __init__(self, name: str, initial_value: ACC, fold_function: Any, type_info: Any = None) -> None:
        super().__init__(name, type_info, initial_value)
        self.fold_function = fold_function
        self.fold: Callable[[ACC, IN], ACC] = method_or_callable(fold_function, "fold", f"Folding state {name!r}")

    def get_fold_function(self) -> Any:
        """Return the function."""
        return self.fold_function
