"""Operator state: lists and broadcast maps of one subtask, and their redistribution over another parallelism.

Elements are read when a state is first used. A list that only grew writes the added elements as a chunk of its own.
Small chunks at its end are rewritten together with it, so that a list has few chunks and an element is written a few
times at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import HoldfastError, OutputTypeError, StateError, StateMigrationError
from holdfast.state.api import BroadcastState, ListState, OperatorStateStore, iter_elements, iter_entries
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from holdfast.state.layout import ValueCodec, value_codec_for
from holdfast.state.operator_snapshot import (
    InlineSnapshotStore,
    Mode,
    OperatorSnapshot,
    Payload,
    ReadConversion,
    SnapshotChunk,
    SnapshotStore,
    StoredState,
    encode_payloads,
    plan_conversion,
    read_chunk,
    translate_read_errors,
)
from holdfast.types.key_codec import KeyCodec, key_codec_for

MAX_CHUNKS: Final = 24
"""Chunks of a list; a snapshot rewrites the newest of more chunks, so that the document stays small."""
_Part = SnapshotChunk | Payload
Snapshots = Sequence[OperatorSnapshot | None]
_Parts = dict[str, StoredState]


class ValueChecker:
    """Converts values and keys of one operator state to their stored form, and names the state in errors.

    Args:
        uid: Uid of the operator.
        kind: Kind of the state, for errors.
        descriptor: Descriptor of the state.
    """

    def __init__(self, uid: str, kind: str, descriptor: StateDescriptor[Any]) -> None:
        self._uid = uid
        self._declared = descriptor.type_info.ddl
        self.name = f"{kind} state {descriptor.name!r} of operator {uid!r}"

    def describe(self) -> str:
        return self.name

    def value(self, codec: ValueCodec, value: Any) -> Any:
        """Return the stored form of a value.

        Raises:
            OutputTypeError: It does not fit the declared type.
        """
        try:
            return codec.adopt(value)
        except StateError:
            raise
        except Exception as error:
            raise self._refused(value, error, self._declared) from error

    def key(self, codec: KeyCodec, key: Any) -> Any:
        """Return the stored form of the key of an entry.

        Raises:
            StateError: It is None.
            OutputTypeError: It does not fit the declared type.
        """
        if key is None:
            raise StateError(f"None cannot be a key of {self.name}.")
        try:
            return codec.dict_key(key)
        except Exception as error:
            raise self._refused(key, error, str(codec.to_json())) from error

    def _refused(self, value: Any, error: Exception, declared: str) -> OutputTypeError:
        return OutputTypeError(self._uid, f"{self.name}: {value!r:.200} cannot be stored: {error}", declared=declared)


class OperatorListState(ListState[Any]):
    """A list whose stored elements are read on first use."""

    def __init__(self, uid: str, descriptor: ListStateDescriptor[Any], mode: Mode) -> None:
        self.descriptor = descriptor
        self._checker = ValueChecker(uid, "list", descriptor)
        self.mode = mode
        self._codec: ValueCodec = value_codec_for(descriptor.type_info, self._checker.name)
        self._chunks: tuple[SnapshotChunk, ...] = ()
        self._load: Callable[[SnapshotChunk], pa.Table] | None = None
        self._conversion = ReadConversion()
        self._before: list[Any] | None = []
        self._added: list[Any] = []

    def get(self) -> list[Any]:
        return list(map(self._codec.expose, [*self._stored(), *self._added]))

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        self._added += self._adopted(values)

    def update(self, values: Iterable[Any]) -> None:
        added = self._adopted(values)
        self.clear()
        self._added = added

    def clear(self) -> None:
        self._chunks, self._before, self._added = (), [], []

    def _adopted(self, values: Iterable[Any]) -> list[Any]:
        elements = None if values is None else list(iter_elements(values, self._checker.describe))
        if elements is None or any(element is None for element in elements):
            raise StateError(f"The elements of {self._checker.name} must not be None, nor may one of them.")
        return [self._checker.value(self._codec, element) for element in elements]

    def description(self) -> dict[str, Any]:
        return {"type": self._codec.type.to_json()}

    def restore(self, stored: StoredState, load: Callable[[SnapshotChunk], pa.Table]) -> None:
        """Start from the elements of a snapshot; those of an older type are converted, and rewritten.

        Raises:
            StateMigrationError: The declared type is not compatible.
        """
        self._conversion = plan_conversion(self.descriptor, stored)
        self._codec = value_codec_for(self._conversion.value or self.descriptor.type_info, self._checker.name)
        self._chunks, self._load, self._before = stored.chunks, load, None

    def parts(self) -> list[_Part]:
        """Return the chunks that stay, followed by content to be written."""
        kept, count = list(self._chunks), len(self._added)
        if self._conversion.is_older and kept:
            kept, count = [], len(self._stored()) + count
        elif not count:
            return list(kept)
        while kept and (kept[-1].count <= 2 * count or len(kept) >= MAX_CHUNKS):
            count += kept.pop().count
        rewritten = self._stored()[sum(chunk.count for chunk in kept) :] if len(kept) < len(self._chunks) else []
        elements = [*rewritten, *self._added]
        payloads = encode_payloads(
            slice(0, len(elements)), lambda some: {"value": _column(self._codec, elements[some], self._checker.name)}
        )
        return [*kept, *payloads]

    def _stored(self) -> list[Any]:
        if self._before is None:
            assert self._load is not None
            with translate_read_errors(self.descriptor.name):
                columns = (
                    self._conversion.values(_column_of(self._load(chunk), "value"), chunk) for chunk in self._chunks
                )
                self._before = [element for column in columns for element in self._codec.to_stored(column)]
        return self._before


class OperatorBroadcastState(BroadcastState[Any, Any]):
    """A map that is read on first use, and written as a whole after a change."""

    def __init__(self, uid: str, descriptor: MapStateDescriptor[Any, Any]) -> None:
        self.descriptor = descriptor
        self._checker = ValueChecker(uid, "broadcast", descriptor)
        self.mode = Mode.BROADCAST
        self._keys: KeyCodec = key_codec_for(descriptor.key_type_info)
        self._codec: ValueCodec = value_codec_for(descriptor.type_info, self._checker.name)
        self._chunks: tuple[SnapshotChunk, ...] = ()
        self._load: Callable[[SnapshotChunk], pa.Table] | None = None
        self._conversion = ReadConversion()
        self._read: dict[Any, Any] | None = {}
        self._is_changed = False

    def get(self, key: Any) -> Any:
        return self._exposed(self._entries().get(self._checker.key(self._keys, key)))

    def put(self, key: Any, value: Any) -> None:
        self._put([(key, value)])

    def put_all(self, dict_value: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        self._put(iter_entries(dict_value, self._checker.describe))

    def _put(self, entries: Iterable[tuple[Any, Any]]) -> None:
        checker, keys, codec = self._checker, self._keys, self._codec
        checked = [(checker.key(keys, key), None if v is None else checker.value(codec, v)) for key, v in entries]
        self._entries().update(checked)
        self._is_changed = True

    def remove(self, key: Any) -> None:
        self._entries().pop(self._checker.key(self._keys, key), None)
        self._is_changed = True

    def contains(self, key: Any) -> bool:
        return self._checker.key(self._keys, key) in self._entries()

    def items(self) -> Iterator[tuple[Any, Any]]:
        user_key = self._keys.user_key
        return iter([(user_key(key), self._exposed(stored)) for key, stored in self._entries().items()])

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        return not self._entries()

    def clear(self) -> None:
        self._read, self._is_changed = {}, True

    def _exposed(self, stored: Any) -> Any:
        return None if stored is None else self._codec.expose(stored)

    def description(self) -> dict[str, Any]:
        return {"type": self._codec.type.to_json(), "key": self._keys.to_json()}

    def restore(self, stored: StoredState, load: Callable[[SnapshotChunk], pa.Table]) -> None:
        """Start from the entries of a snapshot; those of older types are converted, and rewritten.

        Raises:
            StateMigrationError: A declared type is not compatible.
        """
        self._conversion = plan_conversion(self.descriptor, stored, self._keys)
        self._codec = value_codec_for(self._conversion.value or self.descriptor.type_info, self._checker.name)
        self._chunks, self._load, self._read = stored.chunks, load, None
        self._is_changed = self._conversion.is_older

    def parts(self) -> list[_Part]:
        """Return the chunks that stay, or the content to be written in their place."""
        if not self._is_changed:
            return list(self._chunks)
        entries = self._entries()
        if not entries:
            return []
        keys, values = list(entries), list(entries.values())

        def columns(some: slice) -> dict[str, Any]:
            column = _column(self._codec, values[some], self._checker.name)
            return {"key": self._keys.storage_array(keys[some]), "value": column}

        return list(encode_payloads(slice(0, len(keys)), columns))

    def _entries(self) -> dict[Any, Any]:
        if self._read is None:
            assert self._load is not None
            # Assigned only when complete: after an error the next snapshot must not write a part of the map.
            read: dict[Any, Any] = {}
            for chunk in self._chunks:
                with translate_read_errors(self.descriptor.name):
                    table = self._load(chunk)
                    keys = self._conversion.keys(_column_of(table, "key"), self._keys)
                    values = self._conversion.values(_column_of(table, "value"), chunk)
                    read.update(zip(keys, self._codec.to_stored(values), strict=True))
            if len(read) < sum(chunk.count for chunk in self._chunks):
                raise StateMigrationError(
                    f"Several keys of broadcast state {self.descriptor.name!r} become the same as the program declares "
                    "them, so entries would be lost. Declare them as they were, or give the new state another name."
                )
            self._read = read
        return self._read


class OperatorStateBackend(OperatorStateStore):
    """The operator state of one subtask, in memory. It is the same whatever backend keeps the keyed state.

    Args:
        operator_identifier: Uid of the operator.
    """

    def __init__(self, operator_identifier: str) -> None:
        self.operator_identifier = operator_identifier
        self._states: dict[str, OperatorListState | OperatorBroadcastState] = {}
        # Restored states that are not requested yet; snapshots pass them on as they are.
        self._restored: dict[str, StoredState] = {}
        self._store: SnapshotStore = InlineSnapshotStore()
        self._files: dict[str, bytes] = {}

    def get_list_state(self, state_descriptor: ListStateDescriptor[Any]) -> ListState[Any]:
        return self._list(state_descriptor, Mode.SPLIT_DISTRIBUTE)

    def get_union_list_state(self, state_descriptor: ListStateDescriptor[Any]) -> ListState[Any]:
        return self._list(state_descriptor, Mode.UNION)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> BroadcastState[Any, Any]:
        uid = self.operator_identifier
        state = self._state(state_descriptor, Mode.BROADCAST, lambda: OperatorBroadcastState(uid, state_descriptor))
        assert isinstance(state, OperatorBroadcastState)
        return state

    def get_registered_state_names(self) -> set[str]:
        return {name for name, mode in self._modes() if mode is not Mode.BROADCAST}

    def get_registered_broadcast_state_names(self) -> set[str]:
        return {name for name, mode in self._modes() if mode is Mode.BROADCAST}

    def snapshot(self, store: SnapshotStore | None = None) -> OperatorSnapshot | None:
        """Write changed elements to a store, and return all states.

        Args:
            store: The store; None for that of `restore`, by default the snapshot itself.

        Returns:
            A snapshot that later changes do not affect, None if there is no state.

        Raises:
            StateError: A value does not fit the declared type.
        """
        if not self._states and not self._restored:
            return None
        parts = {name: list[_Part](stored.chunks) for name, stored in self._restored.items()}
        stored = dict(self._restored)
        for name, state in self._states.items():
            parts[name] = state.parts()
            stored[name] = StoredState(state.mode, state.description())
        chunks = _write_chunks(parts, store or self._store)
        return OperatorSnapshot({name: replace(stored[name], chunks=chunks[name]) for name in sorted(stored)})

    def restore(self, snapshot: OperatorSnapshot, store: SnapshotStore | None = None) -> None:
        """Replace all states by those of a snapshot.

        Args:
            snapshot: The part of this subtask.
            store: The store that its elements are read from, when a state is first used; None if all elements are in
                the snapshot itself.
        """
        self.dispose()
        self._restored = dict(snapshot.states)
        self._store = store or self._store

    def dispose(self) -> None:
        """Release all states."""
        self._states.clear()
        self._restored.clear()
        self._files.clear()

    def _modes(self) -> Iterator[tuple[str, Mode]]:
        yield from ((name, state.mode) for name, state in self._states.items())
        yield from ((name, stored.mode) for name, stored in self._restored.items())

    def _list(self, descriptor: ListStateDescriptor[Any], mode: Mode) -> OperatorListState:
        state = self._state(descriptor, mode, lambda: OperatorListState(self.operator_identifier, descriptor, mode))
        assert isinstance(state, OperatorListState)
        return state

    def _state(
        self, descriptor: Any, mode: Mode, make: Callable[[], OperatorListState | OperatorBroadcastState]
    ) -> OperatorListState | OperatorBroadcastState:
        name = descriptor.name
        known = dict(self._modes()).get(name, mode)
        if known is not mode:
            raise StateError(
                f"Incompatible state assignment modes: operator state {name!r} of {self.operator_identifier!r} is "
                f"{known.value!r}, but requested as {mode.value!r}. Give one of them another name."
            )
        if name not in self._states:
            state = make()
            stored = self._restored.get(name)
            if stored is not None:
                state.restore(stored, self._read)
                del self._restored[name]
            self._states[name] = state
        return self._states[name]

    def _read(self, chunk: SnapshotChunk) -> pa.Table:
        """Return the elements of a chunk. A file is read once for all its payloads."""
        path = chunk.data.get("path")
        data = self._files.get(path) if path is not None else None
        if data is None:
            data = self._store.read(chunk.data)
            if path is not None:
                self._files[path] = data
        return read_chunk(data, chunk, self.operator_identifier)


def _write_chunks(parts: Mapping[str, Sequence[_Part]], store: SnapshotStore) -> dict[str, tuple[SnapshotChunk, ...]]:
    """Return the chunks of all states; all inline content moves to one file if it exceeds the limit."""
    size = sum(_inline_size(part) for state in parts.values() for part in state)
    if size <= store.inline_limit:
        return {name: tuple(_keep_inline(part, store) for part in state) for name, state in parts.items()}
    blob = bytearray()
    moved = {name: [_append_to_file(part, blob, store) for part in state] for name, state in parts.items()}
    data = store.write(bytes(blob), inline=False)
    return {name: tuple(c if c.data else replace(c, data=data) for c in chunks) for name, chunks in moved.items()}


def _inline_size(part: _Part) -> int:
    if isinstance(part, Payload):
        return len(part.content)
    return part.length if part.is_inline else 0


def _keep_inline(part: _Part, store: SnapshotStore) -> SnapshotChunk:
    if isinstance(part, SnapshotChunk):
        return part
    return SnapshotChunk(store.write(part.content, inline=True), 0, len(part.content), part.count, 0, part.count)


def _append_to_file(part: _Part, blob: bytearray, store: SnapshotStore) -> SnapshotChunk:
    """Return a chunk whose payload is appended to the content of a file; chunks in other files stay."""
    offset = len(blob)
    if isinstance(part, Payload):
        blob += part.content
        return SnapshotChunk({}, offset, len(part.content), part.count, 0, part.count)
    if not part.is_inline:
        return part
    blob += store.read(part.data)[part.offset : part.offset + part.length]
    return replace(part, data={}, offset=offset)


def _column(codec: ValueCodec, stored: Sequence[Any], name: str) -> pa.Array:
    try:
        return codec.to_array(stored)
    except HoldfastError:
        raise
    except Exception as error:
        raise StateError(
            f"A value of {name} cannot be written as {codec.type.ddl!r}: {error}. Declare the state with a type that "
            "fits all its values, none of which may have more than 2 GiB."
        ) from error


def _column_of(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


class RoundRobinOperatorStateRepartitioner:
    """Redistributes the operator state of an operator over its subtasks after a restore or a rescale.

    Chunks are cut and passed on without reading them. Subtasks that have used a list and subtasks that have not may
    have left it in several types; each chunk keeps its type.
    """

    def repartition_state(
        self, previous: Snapshots, old_parallelism: int, new_parallelism: int
    ) -> list[OperatorSnapshot | None]:
        """Return the state of each new subtask, None for a subtask without any.

        With the same parallelism each subtask keeps its state, except that unions are copied to all again, and
        broadcast states that only some subtasks have as well. Otherwise the elements of split lists are distributed in
        order, evenly over all lists together: the counts of two subtasks differ by at most one.

        Args:
            previous: The state of each old subtask.
            old_parallelism: Number of the old subtasks.
            new_parallelism: Number of the new subtasks, at least 1.

        Raises:
            StateError: The numbers do not fit.
        """
        if new_parallelism < 1:
            raise StateError(f"The new parallelism must be at least 1, not {new_parallelism!r}.")
        if len(previous) != old_parallelism:
            raise StateError(
                f"Operator state of {old_parallelism} subtasks is expected, but there is state of {len(previous)}."
            )
        grouped = _group_by_name(previous)
        parts: list[_Parts] = [{} for _ in range(new_parallelism)]
        start = 0
        for name, owners in sorted(grouped.items()):
            mode = next(iter(owners.values())).mode
            if mode is Mode.UNION:
                _copy_union(name, owners, parts)
            elif mode is Mode.BROADCAST:
                _copy_broadcast(name, owners, parts)
            elif old_parallelism == new_parallelism:
                for subtask, state in owners.items():
                    parts[subtask][name] = state
            else:
                start = _distribute(name, owners, parts, start)
        return [OperatorSnapshot(states) if states else None for states in parts]


def _group_by_name(previous: Snapshots) -> dict[str, dict[int, StoredState]]:
    """Return the part of each old subtask by state."""
    grouped: dict[str, dict[int, StoredState]] = {}
    for subtask, snapshot in enumerate(previous):
        for name, state in (snapshot.states if snapshot else {}).items():
            grouped.setdefault(name, {})[subtask] = state
    return grouped


def _typed(state: StoredState) -> list[SnapshotChunk]:
    """Return the chunks of a list, each with its type set."""
    return [replace(chunk, type=state.type_of(chunk)) for chunk in state.chunks if chunk.count]


def _merged(states: Sequence[StoredState], chunks: Sequence[SnapshotChunk]) -> StoredState:
    """Return one list of chunks. It has the type of its last chunk; chunks of other types keep theirs."""
    last = states[-1]
    kind = chunks[-1].type if chunks else last.description["type"]
    own = tuple(replace(chunk, type=None) if chunk.type == kind else chunk for chunk in chunks)
    return replace(last, description={**last.description, "type": kind}, chunks=own)


def _copy_union(name: str, owners: dict[int, StoredState], parts: list[_Parts]) -> None:
    """Copy all elements to all subtasks. Copies that no subtask has used since the last restore count once."""
    copies = [state for state in owners.values() if state.is_handed_out]
    # Lists that were written since are newer, so they come last.
    states = [*copies[:1], *(state for state in owners.values() if not state.is_handed_out)]
    everything = replace(_merged(states, [chunk for state in states for chunk in _typed(state)]), is_handed_out=True)
    for part in parts:
        part[name] = everything


def _copy_broadcast(name: str, owners: dict[int, StoredState], parts: list[_Parts]) -> None:
    copies = list(owners.values())
    for subtask, part in enumerate(parts):
        part[name] = copies[subtask % len(copies)]


def _distribute(name: str, owners: dict[int, StoredState], parts: list[_Parts], start: int) -> int:
    """Distribute one list, its first surplus element to the subtask `start`; return the next such subtask."""
    states = list(owners.values())
    waiting = [chunk for state in states for chunk in _typed(state)]
    each, surplus = divmod(sum(chunk.count for chunk in waiting), len(parts))
    for position in range(len(parts)):
        wanted = each + (position < surplus)
        taken: list[SnapshotChunk] = []
        while wanted:
            head = waiting[0]
            count = min(wanted, head.count)
            taken.append(head.part(0, count))
            wanted -= count
            waiting[:1] = [] if count == head.count else [head.part(count, head.count - count)]
        parts[(start + position) % len(parts)][name] = _merged(states, taken)
    return (start + surplus) % len(parts)
