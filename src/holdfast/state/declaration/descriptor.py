"""Descriptors: the name, kind and type of a state, as a program declares it.

The type of a value is whatever `holdfast.types.conversion.convert.to_type` takes (type information, DDL, a Python
class), or a `TypeSerializer` of one's own. Without one, values are pickled: that works for everything, costs about a
microsecond an access for what is not a number or text, and no other tool can read it.
"""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, Final, Generic, TypeVar

from holdfast.errors import ConfigurationError, StateError
from holdfast.state.declaration.function import method_or_callable
from holdfast.state.declaration.ttl_config import StateTtlConfig
from holdfast.types.conversion.convert import to_type
from holdfast.types.information.type_information import TypeInformation
from holdfast.types.key.key_codec import key_codec_for
from holdfast.types.serializer import TypeSerializer

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
