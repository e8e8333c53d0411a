"""Operator state: lists and broadcast maps of one subtask, in memory, written with the checkpoint's document."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

from holdfast.errors import StateError, StateMigrationError
from holdfast.state.api import BroadcastState, ListState
from holdfast.state.backend.interface import OperatorStateBackend
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor
from holdfast.state.value_codec import ValueCodec, value_codec_for
from holdfast.types.key import KeyCodec, key_codec_for
from holdfast.types.type_information import type_from_json

FORMAT_VERSION: Final = 1


class Mode(Enum):
    """How a state is spread over the subtasks when it is restored; the value stands in files."""

    SPLIT_DISTRIBUTE = "split"
    UNION = "union"
    BROADCAST = "broadcast"


class OperatorListState(ListState[Any]):
    """A list in memory."""

    def __init__(self, descriptor: ListStateDescriptor[Any], mode: Mode) -> None:
        self.descriptor = descriptor
        self.mode = mode
        self._codec: ValueCodec = value_codec_for(descriptor.type_info)
        self._elements: list[Any] = []

    def get(self) -> list[Any]:
        """Return the elements in a new list."""
        return list(map(self._codec.expose, self._elements))

    def add(self, value: Any) -> None:
        """Append an element."""
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements; nothing changes if one of them is refused."""
        self._elements += self._adopted(values)

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements; nothing changes if one of them is refused."""
        self._elements = self._adopted(values)

    def clear(self) -> None:
        """Remove all elements."""
        self._elements = []

    def _adopted(self, values: Iterable[Any]) -> list[Any]:
        elements = None if values is None else list(values)
        if elements is None or any(element is None for element in elements):
            raise StateError(
                f"Neither the elements nor one element of list state {self.descriptor.name!r} may be None."
            )
        return list(map(self._codec.adopt, elements))

    def to_json(self) -> dict[str, Any]:
        """Return the state as a JSON value."""
        serialize = self.descriptor.get_serializer().serialize
        return {
            "mode": self.mode.value,
            "type": self.descriptor.type_info.to_json(),
            "items": [_text(serialize(self._codec.expose(element))) for element in self._elements],
        }

    def from_json(self, document: Mapping[str, Any]) -> None:
        """Take over the elements of a snapshot."""
        read = type_from_json(document["type"]).create_serializer().deserialize
        self._elements = self._adopted(read(_bytes(item)) for item in document["items"])


class OperatorBroadcastState(BroadcastState[Any, Any]):
    """A map in memory."""

    def __init__(self, descriptor: MapStateDescriptor[Any, Any]) -> None:
        self.descriptor = descriptor
        self.mode = Mode.BROADCAST
        self._keys: KeyCodec = key_codec_for(descriptor.key_type_info)
        self._codec: ValueCodec = value_codec_for(descriptor.type_info)
        self._entries: dict[Any, Any] = {}

    def get(self, key: Any) -> Any:
        """Return the value of an entry, None if there is no such entry."""
        return self._exposed(self._entries.get(self._keys.dict_key(key)))

    def put(self, key: Any, value: Any) -> None:
        """Set an entry."""
        self._entries[self._keys.dict_key(key)] = None if value is None else self._codec.adopt(value)

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        """Set several entries."""
        for key, value in dict_value.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove an entry; no such entry is no error."""
        self._entries.pop(self._keys.dict_key(key), None)

    def contains(self, key: Any) -> bool:
        """Whether there is such an entry."""
        return self._keys.dict_key(key) in self._entries

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return key and value of each entry there is now."""
        user_key = self._keys.user_key
        return iter([(user_key(key), self._exposed(stored)) for key, stored in self._entries.items()])

    def keys(self) -> Iterator[Any]:
        """Return the key of each entry there is now."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        """Return the value of each entry there is now."""
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return not self._entries

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()

    def _exposed(self, stored: Any) -> Any:
        return None if stored is None else self._codec.expose(stored)

    def to_json(self) -> dict[str, Any]:
        """Return the state as a JSON value; an entry without a value has None."""
        serialize = self.descriptor.get_serializer().serialize
        entries = []
        for key, stored in self._entries.items():
            value = None if stored is None else _text(serialize(self._codec.expose(stored)))
            entries.append([_text(self._key_bytes(key)), value])
        return {
            "mode": self.mode.value,
            "key": self._keys.to_json(),
            "type": self.descriptor.type_info.to_json(),
            "items": entries,
        }

    def from_json(self, document: Mapping[str, Any]) -> None:
        """Take over the entries of a snapshot."""
        read = type_from_json(document["type"]).create_serializer().deserialize
        for key, value in document["items"]:
            stored = None if value is None else self._codec.adopt(read(_bytes(value)))
            self._entries[self._key_of(_bytes(key))] = stored

    def _key_bytes(self, key: Any) -> bytes:
        key_type = self.descriptor.key_type_info
        if key_type is None:
            return self._keys.canonical_bytes(key)
        return key_type.create_serializer().serialize(self._keys.user_key(key))

    def _key_of(self, data: bytes) -> Any:
        key_type = self.descriptor.key_type_info
        return data if key_type is None else self._keys.dict_key(key_type.create_serializer().deserialize(data))


class DefaultOperatorStateBackend(OperatorStateBackend):
    """Operator state in memory, whatever backend the keyed state has.

    Args:
        operator_identifier: Uid of the operator.
    """

    def __init__(self, operator_identifier: str) -> None:
        self.operator_identifier = operator_identifier
        self._states: dict[str, OperatorListState | OperatorBroadcastState] = {}
        # What was restored and nobody has asked for yet; it is carried on as it is.
        self._waiting: dict[str, Mapping[str, Any]] = {}

    def get_list_state(self, state_descriptor: ListStateDescriptor[Any]) -> ListState[Any]:
        """Return a list whose elements are dealt out over the subtasks when the parallelism changes."""
        return self._list(state_descriptor, Mode.SPLIT_DISTRIBUTE)

    def get_union_list_state(self, state_descriptor: ListStateDescriptor[Any]) -> ListState[Any]:
        """Return a list of which every subtask gets the elements of all on restore."""
        return self._list(state_descriptor, Mode.UNION)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> BroadcastState[Any, Any]:
        """Return a map that is the same on every subtask."""
        state = self._state(state_descriptor, Mode.BROADCAST, lambda: OperatorBroadcastState(state_descriptor))
        assert isinstance(state, OperatorBroadcastState)
        return state

    def get_registered_state_names(self) -> set[str]:
        """Return the names of all list states."""
        return {name for name, mode in self._modes() if mode is not Mode.BROADCAST}

    def get_registered_broadcast_state_names(self) -> set[str]:
        """Return the names of all broadcast states."""
        return {name for name, mode in self._modes() if mode is Mode.BROADCAST}

    def snapshot(self) -> dict[str, Any] | None:
        """Return all states as a JSON value; None if there is none."""
        states = dict(self._waiting) | {name: state.to_json() for name, state in self._states.items()}
        return {"format_version": FORMAT_VERSION, "states": states} if states else None

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take over the states of a snapshot, before any is asked for."""
        if snapshot["format_version"] > FORMAT_VERSION:
            raise StateMigrationError(
                f"Operator state of {self.operator_identifier!r} has format version {snapshot['format_version']}, this "
                f"release reads versions up to {FORMAT_VERSION}. Upgrade Holdfast."
            )
        self._states.clear()
        self._waiting = dict(snapshot["states"])

    def dispose(self) -> None:
        """Let go of everything."""
        self._states.clear()
        self._waiting.clear()

    def _modes(self) -> Iterator[tuple[str, Mode]]:
        yield from ((name, state.mode) for name, state in self._states.items())
        yield from ((name, Mode(document["mode"])) for name, document in self._waiting.items())

    def _list(self, descriptor: ListStateDescriptor[Any], mode: Mode) -> OperatorListState:
        state = self._state(descriptor, mode, lambda: OperatorListState(descriptor, mode))
        assert isinstance(state, OperatorListState)
        return state

    def _state(
        self, descriptor: Any, mode: Mode, make: Callable[[], OperatorListState | OperatorBroadcastState]
    ) -> OperatorListState | OperatorBroadcastState:
        name = descriptor.name
        document = self._waiting.get(name)
        stored = self._states[name].mode if name in self._states else Mode(document["mode"]) if document else mode
        if stored is not mode:
            raise StateError(
                f"Incompatible state assignment modes: operator state {name!r} of {self.operator_identifier!r} is "
                f"{stored.value!r} and asked for as {mode.value!r}. Give one of them another name."
            )
        if name not in self._states:
            state = make()
            if document is not None:
                self._check(name, document, state.to_json())
                state.from_json(document)
                del self._waiting[name]
            self._states[name] = state
        return self._states[name]

    def _check(self, name: str, document: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for part in ("type", "key"):
            if document.get(part) != now.get(part):
                raise StateMigrationError(
                    f"Operator state {name!r} of {self.operator_identifier!r} was written with the {part} "
                    f"{document.get(part)!r}, the program declares {now.get(part)!r}. Declare it as it was."
                )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
