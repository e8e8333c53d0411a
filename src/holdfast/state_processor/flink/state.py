"""Read keyed state in the canonical format of Flink, which all of its state backends write, and operator state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import StateError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.state_processor.flink.metadata import KeyGroupsHandle, OperatorStateHandle
from holdfast.state_processor.flink.serializer import DataInput, FlinkSerializer
from holdfast.state_processor.flink.serializer_snapshot import TTL, read_snapshot

# Flink compresses key groups by Snappy, in frames.

_STREAM: Final = 0xFF
_COMPRESSED: Final = 0x00
_PLAIN: Final = 0x01
_SKIPPABLE: Final = 0x80
_MOST: Final = 1 << 16
"""Bytes of a frame, decompressed: so many at most, says the format."""
_CODEC: Final = pa.Codec("snappy")
_VERSION: Final = 6
_END: Final = 0xFFFF
_FOLLOWS: Final = 0x80
_ONE_BYTE_OF_GROUPS: Final = 128
_SIGN: Final = 1 << 63
_VERSIONS: Final = (5, 6)
_COMPRESSION_SINCE: Final = 6


def decompressed(data: bytes, offset: int, path: str) -> bytes:
    """Return all frames of a stream that begins at an offset and ends where the next begins, or the file.

    Raises:
        CorruptFileError: It is damaged.
    """
    source = DataInput(data, path)
    source.position = offset
    found: list[bytes] = []
    while source.remaining:
        kind = source.byte()
        length = int.from_bytes(source.take(3), "little")
        if kind == _STREAM:
            if found:
                break  # the next key group
            if source.take(length) != b"sNaPpY":
                raise source.corrupt("compressed key groups do not begin as such.")
        elif kind in (_COMPRESSED, _PLAIN):
            found.append(_frame(source, kind, length))
        elif kind >= _SKIPPABLE:
            source.take(length)
        else:
            raise source.corrupt(f"{kind} is no frame of compressed state.")
    return b"".join(found)


def _frame(source: DataInput, kind: int, length: int) -> bytes:
    checksum = int.from_bytes(source.take(4), "little")
    data = source.take(length - 4)
    if kind == _COMPRESSED:
        size = DataInput(data, source.path, None).variable()
        if size > _MOST:
            raise source.corrupt(f"a frame would have {size} bytes.")
        try:
            data = _CODEC.decompress(data, size, asbytes=True)
        except (OSError, *PARSE_ERRORS) as error:
            raise source.corrupt(f"a frame cannot be decompressed: {error}.") from error
    if _masked(_crc32c(data)) != checksum:
        raise source.corrupt("the checksum of a frame is another one.")
    return data


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        found.append(value)
    return tuple(found)


_TABLE: Final = _table()


def _crc32c(data: bytes) -> int:
    crc, table = 0xFFFF_FFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFF_FFFF


VALUE, LIST, MAP, REDUCING, AGGREGATING, TIMERS = "value", "list", "map", "reducing", "aggregating", "timers"
SINGLE: Final = (VALUE, REDUCING, AGGREGATING)
_KEY_VALUE, _PRIORITY_QUEUE = 0, 3
_DELIMITER: Final = ord(",")


@dataclass(frozen=True)
class FlinkState:
    """One keyed state, or the timers of one domain.

    Attributes:
        name: Name of the state.
        kind: Its kind, in terms of this package: `value`, `list`, `map`, `reducing`, `aggregating` or `timers`.
        key: Serializer of the operator's keys.
        namespace: Serializer of namespaces.
        value: Serializer of values, of elements or of the values of a map; of timers None.
        map_key: Serializer of the keys of a map.
        has_stamps: Whether values have the time of their last use in front, for a time to live.
    """

    name: str
    kind: str
    key: FlinkSerializer
    namespace: FlinkSerializer
    value: FlinkSerializer | None
    map_key: FlinkSerializer | None = None
    has_stamps: bool = False

    @property
    def problem(self) -> str | None:
        """The reason why it cannot be read; None if it can."""
        for part in (self.key, self.value, self.map_key):
            if part is not None and part.type is None:
                return part.problem or f"{part.name} has no values that state can have."
        return None

    @property
    def has_namespace(self) -> bool:
        """Whether it has namespaces, such as windows."""
        return self.namespace.length != 0


@dataclass
class FlinkRows:
    """Rows of one state, column by column."""

    key_groups: list[int]
    keys: list[Any]
    namespaces: list[Any]
    map_keys: list[Any]
    values: list[Any]
    stamps: list[Any]

    @classmethod
    def empty(cls) -> FlinkRows:
        return cls([], [], [], [], [], [])

    def extend(self, other: FlinkRows) -> None:
        """Append the rows of another subtask."""
        for own, more in zip(vars(self).values(), vars(other).values(), strict=True):
            own.extend(more)


@dataclass(frozen=True)
class _Meta:
    """The header of the keyed state of a subtask."""

    is_compressed: bool
    states: tuple[FlinkState, ...]


class SubtaskState:
    """The keyed state of one subtask, which is gone through once for all of its states.

    Args:
        handle: Where its key groups begin.
        data: Its bytes.
        path: Where they are from.

    Attributes:
        states: The existing states.

    Raises:
        CorruptFileError: It is damaged.
        StateError: It has a serializer whose snapshot this release does not know.
    """

    def __init__(self, handle: KeyGroupsHandle, data: bytes, path: str) -> None:
        self._handle = handle
        self._data = data
        self._path = path
        self._meta = _meta(DataInput(data, path))
        self.states = self._meta.states

    @cached_property
    def _entries(self) -> list[list[tuple[int, bytes, bytes]]]:
        """The entries of each state: key group, key and value."""
        found: list[list[tuple[int, bytes, bytes]]] = [[] for _ in self.states]
        for group, offset in enumerate(self._handle.offsets, self._handle.first_key_group):
            if offset != 0:
                for position, key, value in _entries(self._data, offset, self._path, self._meta):
                    found[position].append((group, key, value))
        return found

    def rows(self, name: str, max_parallelism: int) -> FlinkRows:
        """Return the rows of one state; none if it is not there.

        Raises:
            CorruptFileError: The subtask's state is damaged.
            StateError: The state cannot be read; says why.
        """
        rows = FlinkRows.empty()
        found = [position for position, state in enumerate(self.states) if state.name == name]
        if not found:
            return rows
        state = self.states[found[0]]
        if state.problem is not None:
            raise StateError(f"State {name!r} in file {self._path!r} cannot be read. {state.problem}")
        decoder = _Decoder(state, max_parallelism, self._path)
        for group, key, value in self._entries[found[0]]:
            decoder.decode(group, key, value, rows)
        return rows


def _meta(source: DataInput) -> _Meta:
    version = source.int32()
    if version != _VERSION:
        raise source.corrupt(f"keyed state begins with version {version}, and not with {_VERSION}.")
    is_compressed = source.boolean()
    key = read_snapshot(source)
    states = []
    for _ in range(source.short()):
        states.append(_state(source, key))
    return _Meta(is_compressed, tuple(states))


def _state(source: DataInput, key: FlinkSerializer) -> FlinkState:
    name, backend_type, options, serializers = read_state_info(source)
    try:
        if backend_type == _PRIORITY_QUEUE:
            timer = serializers["VALUE_SERIALIZER"]
            return FlinkState(name, TIMERS, timer.parts[0], timer.parts[1], None)
        if backend_type != _KEY_VALUE:
            raise source.corrupt(f"{backend_type} is no kind of keyed state.")
        kind = options["KEYED_STATE_TYPE"].lower()
        namespace, value = serializers["NAMESPACE_SERIALIZER"], serializers["VALUE_SERIALIZER"]
        if kind == LIST:
            return _with_stamps(FlinkState(name, kind, key, namespace, value.parts[0]))
        if kind == MAP:
            return _with_stamps(FlinkState(name, kind, key, namespace, value.parts[1], value.parts[0]))
        if kind in SINGLE:
            return _with_stamps(FlinkState(name, kind, key, namespace, value))
    except (KeyError, IndexError) as error:
        raise source.corrupt(f"state {name!r} is not described as one: {error!r}.") from error
    raise source.corrupt(f"state {name!r} is of the kind {kind!r}, which is none.")


def read_state_info(source: DataInput) -> tuple[str, int, dict[str, str], dict[str, FlinkSerializer]]:
    """Read Flink's `StateMetaInfoSnapshot`: name, kind of backend state, options and serializers."""
    name = source.utf()
    backend_type = source.int32()
    options = {source.utf(): source.utf() for _ in range(source.count(4))}
    serializers: dict[str, FlinkSerializer] = {}
    for _ in range(source.count(2)):
        of = source.utf()
        try:
            serializers[of] = read_snapshot(source)
        except StateError as error:
            raise StateError(f"State {name!r}: {error}") from error
    return name, backend_type, options, serializers


def _with_stamps(state: FlinkState) -> FlinkState:
    value = state.value
    if value is None or value.name != TTL:
        return state
    return FlinkState(state.name, state.kind, state.key, state.namespace, value.parts[1], state.map_key, True)


def _entries(data: bytes, offset: int, path: str, meta: _Meta) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the entries of a key group: state, key and value."""
    if not 0 < offset < len(data):
        raise DataInput(data, path).corrupt(f"a key group should begin at {offset}, and there are {len(data)} bytes.")
    if meta.is_compressed:
        source = DataInput(decompressed(data, offset, path), path, None)
    else:
        source = DataInput(data[offset:], path, offset)
    state = source.short() & 0xFFFF
    while True:
        if state >= len(meta.states):
            raise source.corrupt(f"there is no state {state}.")
        key, value = source.take(source.int32()), source.take(source.int32())
        if not key:
            raise source.corrupt("a key has no bytes.")
        if not key[0] & _FOLLOWS:
            yield state, key, value
            continue
        yield state, bytes([key[0] & ~_FOLLOWS]) + key[1:], value
        state = source.short() & 0xFFFF
        if state == _END:
            return


class _Decoder:
    """Decodes the entries of one state."""

    def __init__(self, state: FlinkState, max_parallelism: int, path: str) -> None:
        self._state = state
        self._prefix = 1 if max_parallelism <= _ONE_BYTE_OF_GROUPS else 2
        self._is_ambiguous = state.key.length < 0 and state.namespace.length < 0
        self._path = f"{path} (state {state.name})"

    def decode(self, group: int, key: bytes, value: bytes, rows: FlinkRows) -> None:
        state = self._state
        source = DataInput(key, self._path, None)
        if int.from_bytes(source.take(self._prefix), "big") != group:
            raise source.corrupt(f"an entry of key group {group} is of another one.")
        if state.kind == TIMERS:
            rows.stamps.append((source.long() & (1 << 64) - 1) - _SIGN)
        rows.keys.append(self._part(state.key, source))
        rows.namespaces.append(self._part(state.namespace, source))
        rows.key_groups.append(group)
        if state.map_key is not None:
            rows.map_keys.append(state.map_key.read(source))
        source.require_end("a key")
        if state.value is not None:
            self._value(state, state.value, DataInput(value, source.path, None), rows)

    def _part(self, serializer: FlinkSerializer, source: DataInput) -> Any:
        """Read a key or namespace; its length follows where its bytes alone would be ambiguous."""
        if not self._is_ambiguous or self._state.kind == TIMERS:
            return serializer.read(source)
        before = source.position
        found = serializer.read(source)
        length = source.position - before
        if source.take(max(1, -(-length.bit_length() // 8))) != length.to_bytes(
            max(1, -(-length.bit_length() // 8)), "little"
        ):
            raise source.corrupt("the length of a key is another one.")
        return found

    def _value(self, state: FlinkState, one: FlinkSerializer, source: DataInput, rows: FlinkRows) -> None:
        if state.kind == LIST:
            stamps: list[int | None] = []
            values: list[Any] = []
            while source.remaining:
                if values and source.byte() != _DELIMITER:
                    raise source.corrupt("between two elements of a list stands no comma.")
                stamps.append(source.long() if state.has_stamps else None)
                values.append(one.read(source))
            rows.values.append(values)
            rows.stamps.append(stamps)
            return
        is_null = state.kind == MAP and source.boolean()
        rows.stamps.append(source.long() if state.has_stamps and not is_null else None)
        rows.values.append(None if is_null else one.read(source))
        source.require_end("a value")


# Operator state: split lists, unions and broadcast maps.

SPLIT, UNION, BROADCAST = "split", "union", "broadcast"
_OPERATOR, _BROADCAST = 1, 2


@dataclass(frozen=True)
class FlinkOperatorState:
    """One operator state.

    Attributes:
        name, mode: Name of the state, and its mode: `split`, `union` or `broadcast`.
        value: Serializer of elements, or of the values of a broadcast map.
        key: Serializer of the keys of a broadcast map.
    """

    name: str
    mode: str
    value: FlinkSerializer
    key: FlinkSerializer | None = None

    @property
    def problem(self) -> str | None:
        """The reason why it cannot be read; None if it can."""
        for part in (self.value, self.key):
            if part is not None and part.type is None:
                return part.problem or f"{part.name} has no values that state can have."
        return None


def read_operator_states(handle: OperatorStateHandle, data: bytes, path: str) -> tuple[FlinkOperatorState, ...]:
    """Return what states are in the operator state of a subtask.

    Raises:
        CorruptFileError: It is damaged.
        StateError: It has a serializer whose snapshot this release does not know.
    """
    return _operator_meta(handle, DataInput(data, path))[1]


def read_elements(handle: OperatorStateHandle, data: bytes, path: str, name: str) -> list[Any]:
    """Return the elements of a state in the operator state of a subtask; of a broadcast map pairs.

    Raises:
        CorruptFileError: It is damaged.
        StateError: The state cannot be read; says why.
    """
    is_compressed, states = _operator_meta(handle, DataInput(data, path))
    found = [state for state in states if state.name == name]
    partitions = handle.states.get(name)
    if not found or partitions is None:
        return []
    state = found[0]
    if state.problem is not None:
        raise StateError(f"State {name!r} in file {path!r} cannot be read. {state.problem}")
    elements: list[Any] = []
    for offset in partitions.offsets:
        if not 0 < offset < len(data):
            raise DataInput(data, path).corrupt(f"an element should begin at {offset}; there are {len(data)} bytes.")
        source = DataInput(decompressed(data, offset, path) if is_compressed else data[offset:], path, None)
        if state.key is None:
            elements.append(state.value.read(source))
        else:
            elements += [(state.key.read(source), state.value.read(source)) for _ in range(source.count())]
    return elements


def _operator_meta(handle: OperatorStateHandle, source: DataInput) -> tuple[bool, tuple[FlinkOperatorState, ...]]:
    version = source.int32()
    if version not in _VERSIONS:
        raise source.corrupt(f"operator state begins with version {version}, and not with {_VERSIONS}.")
    is_compressed = source.boolean() if version >= _COMPRESSION_SINCE else False
    states = []
    for wanted in (_OPERATOR, _BROADCAST):
        for _ in range(source.short()):
            name, kind, _, serializers = read_state_info(source)
            value = serializers.get("VALUE_SERIALIZER")
            key = serializers.get("KEY_SERIALIZER") if wanted == _BROADCAST else None
            if kind != wanted or value is None or (wanted == _BROADCAST and key is None):
                raise source.corrupt(f"operator state {name!r} is not described as one.")
            mode = handle.states[name].mode if name in handle.states else SPLIT
            states.append(FlinkOperatorState(name, mode, value, key))
    return is_compressed, tuple(states)
