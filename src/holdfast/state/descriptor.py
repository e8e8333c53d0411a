"""Functions that states apply by themselves: reduce, aggregate, fold.

Wherever one of them is taken, a plain callable or any object with the same methods does as well.
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


class _Opened:
    """What a function may do before its first call and after its last one; states themselves call neither."""

    def open(self, runtime_context: Any) -> None:
        """Prepares the function."""

    def close(self) -> None:
        """Releases what `open` took."""


class ReduceFunction(_Opened, ABC):
    """Combines two elements into one of the same type."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Returns the combination of what there is (`value1`) with a new element (`value2`)."""


class AggregateFunction(_Opened, ABC):
    """Collects elements in an accumulator, from which a result of another type may be taken at any time."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Returns an accumulator that has seen nothing."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Returns the accumulator with one more element; it may change and return the one given."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Returns the result of what the accumulator has seen, without changing it."""

    @abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Returns an accumulator that has seen what both have."""


class FoldFunction(ABC):
    """Adds elements to an accumulator that starts from a given value."""

    @abstractmethod
    def fold(self, accumulator: Any, value: Any) -> Any:
        """Returns the accumulator with one more element."""


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


# How long state lives after it was last used: the configuration that a descriptor takes.
#
# Time is the epoch's processing time. Expired state is not seen again (unless asked for) and is removed when it is read
# and, a stretch of the loaded keys in turn, when the subtask takes its snapshot; compaction drops the rest.

_LONGEST: Final = 2**63 - 1
"""For ever: stamps in files are whole numbers of 64 bits, and so is a time to live."""


@dataclass(frozen=True)
class CleanupStrategies:
    """What removes expired state besides reading it.

    Attributes:
        in_background: Whether the default clean-up runs: at each snapshot, and in compaction.
        full_snapshot: Whether merges of all runs, which are the full snapshots here, leave expired entries out.
        incremental_size: Entries looked at for each key that an epoch touches; None for a default number a snapshot.
        incremental_for_every_record: Whether records count that touch no state; here every record touches its key.
        compaction_query_entries: Entries after which compaction asks for the time again; None for its default.
    """

    in_background: bool = True
    full_snapshot: bool = False
    incremental_size: int | None = None
    incremental_for_every_record: bool = False
    compaction_query_entries: int | None = None

    def is_cleanup_in_background(self) -> bool:
        """Whether the default clean-up runs."""
        return self.in_background

    def in_full_snapshot(self) -> bool:
        """Whether merges of all runs leave expired entries out."""
        return self.full_snapshot

    @property
    def in_compaction(self) -> bool:
        """Whether compaction drops what has expired: by default, or because a strategy that does was named."""
        return self.in_background or self.full_snapshot or self.compaction_query_entries is not None


@dataclass(frozen=True)
class StateTtlConfig:
    """Time to live of a state; make one with `new_builder(ttl).build()`.

    Attributes:
        ttl: Milliseconds from the last use until the state has expired, the last one included.
        update_type: What counts as a use.
        state_visibility: What a read of expired state returns.
        cleanup_strategies: What removes expired state that nobody reads.
    """

    class UpdateType(Enum):
        """When the time to live starts anew."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether expired state that has not been removed yet is still returned, once."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """The clock that counts; there is only one."""

        ProcessingTime = 0

    DISABLED: ClassVar[StateTtlConfig]

    ttl: int
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    state_visibility: StateVisibility = StateVisibility.NeverReturnExpired
    cleanup_strategies: CleanupStrategies = CleanupStrategies()

    @staticmethod
    def new_builder(ttl: Any) -> StateTtlConfig.Builder:
        """Returns a builder with the default settings.

        Args:
            ttl: Milliseconds, a `datetime.timedelta`, text such as ``"10 min"``, or an object with `to_milliseconds()`.

        Raises:
            ConfigurationError: It is no length of time, or not positive.
        """
        return StateTtlConfig.Builder(ttl)

    def is_enabled(self) -> bool:
        """Whether state expires at all."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled

    def get_ttl(self) -> int:
        """Returns the time to live in milliseconds."""
        return self.ttl

    def get_update_type(self) -> UpdateType:
        """Returns what counts as a use."""
        return self.update_type

    def get_state_visibility(self) -> StateVisibility:
        """Returns what a read of expired state gives."""
        return self.state_visibility

    def get_ttl_time_characteristic(self) -> TtlTimeCharacteristic:
        """Returns the clock, always processing time."""
        return StateTtlConfig.TtlTimeCharacteristic.ProcessingTime

    def get_cleanup_strategies(self) -> CleanupStrategies:
        """Returns what removes expired state that nobody reads."""
        return self.cleanup_strategies

    class Builder:
        """Builds a `StateTtlConfig`; every method but `build` returns the builder."""

        def __init__(self, ttl: Any) -> None:
            self._config = StateTtlConfig(_milliseconds(ttl))

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfig.Builder:
            """Sets what counts as a use."""
            return self._with(update_type=update_type)

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Lets writes count as a use; the default."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Lets reads count as a use, too."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Sets what a read of expired state gives."""
            return self._with(state_visibility=state_visibility)

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Lets the read that removes expired state return it, once."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Hides expired state; the default."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(
            self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
        ) -> StateTtlConfig.Builder:
            """Accepts the one clock that there is."""
            if ttl_time_characteristic is not StateTtlConfig.TtlTimeCharacteristic.ProcessingTime:
                raise ConfigurationError(
                    f"The time to live follows the processing time, not {ttl_time_characteristic!r}."
                )
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Names the one clock that there is."""
            return self

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Leaves expired entries out when all runs of a key are merged, which is what a full snapshot is here."""
            return self._cleanup(full_snapshot=True)

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool = False
        ) -> StateTtlConfig.Builder:
            """Looks at so many entries for each key that an epoch touches.

            Raises:
                ConfigurationError: The number is not positive.
            """
            if cleanup_size <= 0:
                raise ConfigurationError(
                    f"Incremental clean-up looks at a positive number of entries, not {cleanup_size!r}."
                )
            return self._cleanup(
                incremental_size=cleanup_size, incremental_for_every_record=run_cleanup_for_every_record
            )

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int = 1000, periodic_compaction_time: Any = None
        ) -> StateTtlConfig.Builder:
            """Drops expired entries in compaction, whatever the backend.

            Args:
                query_time_after_num_entries: Accepted: a compaction has one time.
                periodic_compaction_time: Accepted: runs are compacted as they become many, whatever their age.
            """
            return self._cleanup(compaction_query_entries=query_time_after_num_entries)

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Removes expired state only when it is read, except by strategies that are named explicitly."""
            return self._cleanup(in_background=False)

        def set_ttl(self, ttl: Any) -> StateTtlConfig.Builder:
            """Sets the time to live; see `StateTtlConfig.new_builder`."""
            return self._with(ttl=_milliseconds(ttl))

        def build(self) -> StateTtlConfig:
            """Returns the configuration."""
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
        raise ConfigurationError(f"A time to live is expected to be positive, not {ttl!r}.")
    return min(milliseconds, _LONGEST)


StateTtlConfig.DISABLED = StateTtlConfig(_LONGEST, StateTtlConfig.UpdateType.Disabled)


# Descriptors: the name, kind and type of a state, as a program declares it.
#
# The type of a value is whatever `holdfast.types.type_parser.to_type` takes (type information, DDL, a Python
# class), or a `TypeSerializer` of one's own. Without one, values are pickled: that works for everything, costs about a
# microsecond an access for what is not a number or text, and no other tool can read it.

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")

RESERVED_PREFIX: Final = "_timer_state/"
"""What the timers of an operator are kept under, in the same files as its state."""

_CANNOT_CHANGE: Final = frozenset({type(None), bool, int, float, str, bytes})


class StateKind(Enum):
    """What kind of state it is; the value stands in files."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    FOLDING = "folding"


class StateDescriptor(ABC, Generic[T]):
    """Name, kind and type of a state. Two descriptors are equal if name and kind are.

    Args:
        name: Unique within the operator, not empty; none that begins with `_timer_state/`, which is where timers are.
        type_info: Type of the value, see the module; None for pickled values.
        default_value: What reading absent state returns a copy of; only value states have one.

    Raises:
        ConfigurationError: The name is empty, no text, or reserved.
    """

    KIND: ClassVar[StateKind]

    def __init__(self, name: str, type_info: Any = None, default_value: T | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"A state needs a name that is a text and not empty, not {name!r}.")
        if name.startswith(RESERVED_PREFIX):
            raise ConfigurationError(f"{name!r} is a name of timers; give the state one without {RESERVED_PREFIX!r}.")
        self.name = name
        self._type = to_type(type_info)
        self._serializer: TypeSerializer[T] | None = type_info if isinstance(type_info, TypeSerializer) else None
        self._default_value = default_value
        self._queryable_name: str | None = None
        self._ttl = StateTtlConfig.DISABLED

    @property
    def kind(self) -> StateKind:
        """What kind of state it is."""
        return self.KIND

    @property
    def type_info(self) -> TypeInformation:
        """The type of the value, of an element, or of an accumulator."""
        return self._type

    @property
    def ttl_config(self) -> StateTtlConfig:
        """How long the state lives."""
        return self._ttl

    @property
    def queryable_state_name(self) -> str | None:
        """The name under which the state can be queried, None if it cannot."""
        return self._queryable_name

    def get_name(self) -> str:
        """Returns the name."""
        return self.name

    def get_type(self) -> StateKind:
        """Returns the kind."""
        return self.KIND

    def get_default_value(self) -> T | None:
        """Returns a copy of the default."""
        default = self._default_value
        return default if type(default) in _CANNOT_CHANGE else copy.deepcopy(default)

    def has_default_value(self) -> bool:
        """Whether reading absent state gives something else than None."""
        return self._default_value is not None

    def get_serializer(self) -> TypeSerializer[T]:
        """Returns a serializer of the value."""
        if self._serializer is None:
            self._serializer = self._type.create_serializer()
        return self._serializer

    def is_serializer_initialized(self) -> bool:
        """Whether a serializer was given or made already."""
        return self._serializer is not None

    def initialize_serializer_unless_set(self, serializer: Any = None) -> None:
        """Settles the serializer.

        Args:
            serializer: Taken instead of the type's if it is a `TypeSerializer` and none was given or made before;
                anything else, such as an execution configuration, is accepted and without meaning here.
        """
        if self._serializer is None and isinstance(serializer, TypeSerializer):
            self._type, self._serializer = to_type(serializer), serializer
        self.get_serializer()

    def set_queryable(self, queryable_state_name: str) -> None:
        """Lets the state be queried under a name.

        Raises:
            StateError: It has a name already.
            ConfigurationError: The state expires.
        """
        if self._queryable_name is not None:
            raise StateError(f"State {self.name!r} is queryable as {self._queryable_name!r} already.")
        if self._ttl.is_enabled():
            raise ConfigurationError(f"State {self.name!r} has a time to live and cannot be queryable as well.")
        self._queryable_name = queryable_state_name

    def is_queryable(self) -> bool:
        """Whether the state can be queried."""
        return self._queryable_name is not None

    def get_queryable_state_name(self) -> str | None:
        """Returns the name under which the state can be queried."""
        return self._queryable_name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Lets the state expire.

        Raises:
            ConfigurationError: The state is queryable.
        """
        if ttl_config.is_enabled() and self._queryable_name is not None:
            raise ConfigurationError(f"State {self.name!r} is queryable and cannot have a time to live as well.")
        self._ttl = ttl_config

    def get_ttl_config(self) -> StateTtlConfig:
        """Returns how long the state lives."""
        return self._ttl

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, StateDescriptor) and other.name == self.name

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class ValueStateDescriptor(StateDescriptor[T]):
    """One value a key: `ValueStateDescriptor(name, type, default_value)`."""

    KIND = StateKind.VALUE

    def __init__(self, name: str, value_type_info: Any = None, default_value: T | None = None) -> None:
        super().__init__(name, value_type_info, default_value)


class ListStateDescriptor(StateDescriptor[T]):
    """A list a key: `ListStateDescriptor(name, element_type)`."""

    KIND = StateKind.LIST

    def __init__(self, name: str, elem_type_info: Any = None) -> None:
        super().__init__(name, elem_type_info)


class MapStateDescriptor(StateDescriptor[Any], Generic[K, V]):
    """A map a key: `MapStateDescriptor(name, key_type, value_type)`.

    Map keys without a type are the plain Python values that `key_by` takes without a `key_type`.
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
    """A value a key into which elements are reduced: `ReducingStateDescriptor(name, reduce_function, type)`.

    The function is a `ReduceFunction` or a callable of two elements.
    """

    KIND = StateKind.REDUCING

    def __init__(self, name: str, reduce_function: Any, type_info: Any = None) -> None:
        super().__init__(name, type_info)
        self.reduce_function = reduce_function
        self.reduce: Callable[[T, T], T] = method_or_callable(reduce_function, "reduce", f"Reducing state {name!r}")

    def get_reduce_function(self) -> Any:
        """Returns the function as it was given."""
        return self.reduce_function


class AggregatingStateDescriptor(StateDescriptor[ACC], Generic[IN, ACC, OUT]):
    """An accumulator a key: `AggregatingStateDescriptor(name, aggregate_function, accumulator_type)`."""

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
        """Returns the function."""
        return self.agg_function


class FoldingStateDescriptor(StateDescriptor[ACC], Generic[IN, ACC]):
    """An accumulator a key that starts from a value: `FoldingStateDescriptor(name, initial, fold_function, type)`.

    The function is a `FoldFunction` or a callable of accumulator and element.
    """

    KIND = StateKind.FOLDING

    def __init__(self, name: str, initial_value: ACC, fold_function: Any, type_info: Any = None) -> None:
        super().__init__(name, type_info, initial_value)
        self.fold_function = fold_function
        self.fold: Callable[[ACC, IN], ACC] = method_or_callable(fold_function, "fold", f"Folding state {name!r}")

    def get_fold_function(self) -> Any:
        """Returns the function as it was given."""
        return self.fold_function
