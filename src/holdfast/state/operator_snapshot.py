"""Snapshots of operator state: for each state of a subtask its type and chunks of elements.

A chunk is a range of elements in one payload (an Arrow stream), which is inline in the document or in a file::

    {"format_version": 1, "states": {<name>: {"mode": "split" | "union" | "broadcast", "type": ..., "key": ...,
        "chunks": [{"data": {"inline": <base64>} | {"path", "size", "digest"}, "offset", "length",
                    "items", "first", "count", "type": ...}], "handed_out": true}}}

`handed_out` marks a union that a restore copied to all subtasks and that this one has not used since.
`offset` and `length` are the position of the payload in the data, `items` is its number of elements, and `first` and
`count` are those that belong to the subtask. So a list is appended to and redistributed without reading it. A chunk has
a `type` only if it differs from that of the state: subtasks that have used a list and subtasks that have not may have
left it in several types. A document with such a chunk has format version 2.
"""

from __future__ import annotations

import base64
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import StateError, StateMigrationError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.state import batch
from holdfast.state.descriptor import StateDescriptor
from holdfast.state.evolution import check_compatibility
from holdfast.storage.file_system import base_name
from holdfast.storage.job_directory import FileName
from holdfast.types.key_codec import KeyCodec, codec_from_json
from holdfast.types.migration import migrate_column, reconfigure
from holdfast.types.type_information import TypeInformation, type_from_json

FORMAT_VERSION: Final = 2
"""The newest version that can be read. Version 1 is written if every chunk has the type of its state."""


class Mode(Enum):
    """How a state is distributed over the subtasks on restore; the value is part of the file format."""

    SPLIT_DISTRIBUTE = "split"
    UNION = "union"
    BROADCAST = "broadcast"


@dataclass(frozen=True)
class SnapshotChunk:
    """Elements in one payload.

    Attributes:
        data: Location of the payload, as a `SnapshotStore` returned it.
        offset: First byte of the payload.
        length: Length of the payload in bytes.
        items: Number of elements in the payload.
        first: Index of the first element that belongs to this chunk.
        count: Number of elements that belong to this chunk.
        type: Type of the elements as JSON, if it differs from that of the state.
    """

    data: Mapping[str, Any]
    offset: int
    length: int
    items: int
    first: int
    count: int
    type: Any = None

    @property
    def is_inline(self) -> bool:
        return "inline" in self.data

    def is_new(self, since: int) -> bool:
        """Return whether the payload is in the document, or in a file that was written after an epoch."""
        if self.is_inline:
            return True
        name = FileName.parse(base_name(self.data["path"]))
        return name is None or name.epoch > since

    def part(self, first: int, count: int) -> SnapshotChunk:
        """Return a chunk of some of the elements; `first` counts from the first element of this chunk."""
        return replace(self, first=self.first + first, count=count)

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        if self.type is None:
            del fields["type"]
        return fields


@dataclass(frozen=True)
class StoredState:
    """One state of one subtask.

    Attributes:
        mode: How it is distributed.
        description: Its declaration: `type`, and for a broadcast state `key`.
        chunks: Its elements in order.
        is_handed_out: Whether it is the copy of a union that every subtask received on restore and that this one has
            not used since; all such copies are the same.
    """

    mode: Mode
    description: Mapping[str, Any]
    chunks: tuple[SnapshotChunk, ...] = ()
    is_handed_out: bool = False

    @property
    def count(self) -> int:
        """Number of elements."""
        return sum(chunk.count for chunk in self.chunks)

    def type_of(self, chunk: SnapshotChunk) -> Any:
        """Return the type of the elements of a chunk, as JSON."""
        return self.description["type"] if chunk.type is None else chunk.type


@dataclass(frozen=True)
class OperatorSnapshot:
    """All operator state of one subtask."""

    states: Mapping[str, StoredState]

    def size(self) -> int:
        """Return the size of the payloads in bytes; one that is shared with other subtasks counts in proportion."""
        return self.new_size(-1)

    def new_size(self, since: int) -> int:
        """Return the bytes in the document and in files that were written after an epoch."""
        chunks = [chunk for state in self.states.values() for chunk in state.chunks]
        return sum(chunk.length * chunk.count // max(1, chunk.items) for chunk in chunks if chunk.is_new(since))

    def paths(self) -> Iterable[str]:
        """Return the paths of the files that the snapshot refers to."""
        return {chunk.data["path"] for state in self.states.values() for chunk in state.chunks if "path" in chunk.data}

    def to_json(self) -> dict[str, Any]:
        states = {
            name: {
                "mode": state.mode.value,
                **state.description,
                "chunks": [chunk.to_json() for chunk in state.chunks],
                **({"handed_out": True} if state.is_handed_out else {}),
            }
            for name, state in self.states.items()
        }
        is_mixed = any(chunk.type is not None for state in self.states.values() for chunk in state.chunks)
        return {"format_version": 2 if is_mixed else 1, "states": states}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OperatorSnapshot:
        """Read the result of `to_json`.

        Raises:
            StateMigrationError: It was written by a newer release.
            StateError: It is malformed.
        """
        try:
            version = value["format_version"]
            _require_valid(type(version) is int, "format_version", version)
            if version > FORMAT_VERSION:
                raise StateMigrationError(
                    f"Operator state has format version {version}, this release reads versions up to "
                    f"{FORMAT_VERSION}. Upgrade Holdfast."
                )
            return cls({name: _read_state(dict(state)) for name, state in value["states"].items()})
        except PARSE_ERRORS as error:
            raise StateError(f"Operator state in a checkpoint is malformed: {error!r:.300}.") from error


def snapshot_size(snapshot: Any, since: int = -1) -> int:
    """Return the size of a snapshot in bytes, 0 if it is not operator state.

    Args:
        snapshot: The snapshot as JSON.
        since: An epoch; files that were written up to it do not count.
    """
    if not (isinstance(snapshot, Mapping) and isinstance(snapshot.get("states"), Mapping)):
        return 0
    if snapshot.get("format_version", FORMAT_VERSION) > FORMAT_VERSION:
        return 0  # listings must not fail on it; a restore raises
    return OperatorSnapshot.from_json({"format_version": FORMAT_VERSION, **snapshot}).new_size(since)


def check_snapshot(snapshot: Any) -> None:
    """Check that the entry of a subtask in a document is None or a well-formed snapshot.

    Raises:
        StateError: It is not. Snapshots of newer releases are accepted; reading them raises.
    """
    if snapshot is not None and not isinstance(snapshot, Mapping):
        raise StateError(f"Operator state cannot be {reprlib.repr(snapshot)}.")
    if snapshot is None or "states" not in snapshot:
        return
    version = snapshot.get("format_version")
    if type(version) is not int or version <= FORMAT_VERSION:
        OperatorSnapshot.from_json(snapshot)


def _read_state(fields: dict[str, Any]) -> StoredState:
    mode, chunks = Mode(fields.pop("mode")), fields.pop("chunks")
    is_handed_out = fields.pop("handed_out", False) is True
    for name in ("type", "key") if mode is Mode.BROADCAST else ("type",):
        _require_valid(name in fields, name, fields)
    return StoredState(mode, fields, tuple(map(_read_chunk_entry, chunks)), is_handed_out)


def _read_chunk_entry(fields: Mapping[str, Any]) -> SnapshotChunk:
    chunk, data = SnapshotChunk(**fields), dict(fields["data"])
    for name in ("offset", "length", "items", "first", "count"):
        number = fields[name]
        _require_valid(type(number) is int and number >= 0, name, number)
    _require_valid(chunk.first + chunk.count <= chunk.items, "count", chunk.count)
    if chunk.is_inline:
        _require_valid(type(data["inline"]) is str, "inline", data["inline"])
    else:
        texts = (data["path"], data.get("digest", ""))
        _require_valid(all(type(text) is str for text in texts) and type(data.get("size", 0)) is int, "data", data)
    return chunk


def _require_valid(holds: bool, field: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{field} cannot be {reprlib.repr(value)}")


class SnapshotStore(ABC):
    """Storage of the payloads of a snapshot.

    Attributes:
        inline_limit: Bytes of one subtask's payloads up to which all of them stay in the document.
    """

    inline_limit: int

    def write(self, data: bytes, *, inline: bool) -> dict[str, Any]:
        """Write bytes durably, and return their location as JSON."""
        return {"inline": base64.b64encode(data).decode("ascii")} if inline else self.write_file(data)

    def read(self, data: Mapping[str, Any]) -> bytes:
        """Return the bytes at a location.

        Raises:
            CorruptFileError: The content has changed.
            NotExistError: The file is missing.
        """
        if "inline" not in data:
            return self.read_file(data)
        try:
            return base64.b64decode(data["inline"], validate=True)
        except (ValueError, TypeError) as error:
            raise StateError(f"Inline operator state in a checkpoint cannot be decoded: {error}.") from error

    @abstractmethod
    def write_file(self, data: bytes) -> dict[str, Any]:
        """Write bytes durably to a new file, and return its location."""

    @abstractmethod
    def read_file(self, data: Mapping[str, Any]) -> bytes: ...


class InlineSnapshotStore(SnapshotStore):
    """Keeps all payloads inline; for callers without files."""

    inline_limit = 2**63

    def write_file(self, data: bytes) -> dict[str, Any]:
        return self.write(data, inline=True)

    def read_file(self, data: Mapping[str, Any]) -> bytes:
        raise StateError(f"The snapshot refers to the file {dict(data)!r}, but was restored without a file store.")


@dataclass(frozen=True)
class Payload:
    """A payload that is not written yet: an Arrow stream with a column `value`, and of maps a column `key`."""

    content: bytes
    count: int


def encode_payloads(elements: slice, columns: Callable[[slice], Mapping[str, Any]]) -> Iterator[Payload]:
    """Yield elements as payloads, in order: nearly always one, several if they exceed the size of a batch.

    Args:
        elements: Range of the elements.
        columns: Returns the columns of a range of elements. It may fail if they exceed the limit of an Arrow array.

    Raises:
        Exception: Any error that `columns` raises for a single element.
    """
    for count, found in batch.build_by_halves(
        elements.start, elements.stop, lambda first, last: columns(slice(first, last)), _fits_batch
    ):
        yield Payload(_encode(found), count)


def _fits_batch(columns: Mapping[str, Any]) -> bool:
    arrays = columns.values()
    return all(isinstance(array, pa.Array) for array in arrays) and sum(a.nbytes for a in arrays) <= batch.BATCH_BYTES


def _encode(columns: Mapping[str, pa.Array]) -> bytes:
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def read_chunk(data: bytes, chunk: SnapshotChunk, owner: str) -> pa.Table:
    """Return the elements of a chunk that belong to a subtask.

    Args:
        data: Content of the location of the payload.
        chunk: Position of the payload in it.
        owner: Uid of the operator, for errors.

    Raises:
        StateError: The payload is malformed.
    """
    try:
        table = pa.ipc.open_stream(pa.py_buffer(data).slice(chunk.offset, chunk.length)).read_all()
        table.validate(full=True)
        if table.num_rows != chunk.items:
            raise ValueError(f"there are {table.num_rows}")
    except (pa.ArrowException, OSError, EOFError, *PARSE_ERRORS) as error:
        place = "its document" if chunk.is_inline else repr(chunk.data.get("path"))
        raise StateError(
            f"{chunk.items} elements of operator state of {owner!r} cannot be read from {place:.300}: {error!r:.200}. "
            "Start from another checkpoint (-s PATH)."
        ) from error
    return table.slice(chunk.first, chunk.count)


@contextmanager
def translate_read_errors(state: str) -> Iterator[None]:
    """Translate errors of elements that do not match their type.

    Raises:
        StateError: The body raised such an error.
    """
    try:
        yield
    except (pa.ArrowException, *PARSE_ERRORS) as error:
        raise StateError(
            f"Operator state {state!r} in the checkpoint does not match its type: {error!r:.200}. Start from another "
            "checkpoint (-s PATH)."
        ) from error


@dataclass(frozen=True)
class _Form:
    """A type in which values were written.

    Attributes:
        mark: The `type` of its chunks.
        type: The type.
        is_read_one_by_one: Whether each value must be read as that type, because its bytes have another meaning in the
            current type.
    """

    mark: Any
    type: TypeInformation
    is_read_one_by_one: bool


@dataclass(frozen=True)
class ReadConversion:
    """The conversion from stored types to the declared ones.

    Attributes:
        is_older: Whether any part was written in another type than the current one.
        forms: The types of stored values, if they are not all the current type.
        value: The current type of values; None for the declared one.
        key_before: Codec in which the keys of a broadcast map were written, if it was another one.
        key_types: The key types then and now.
    """

    is_older: bool = False
    forms: tuple[_Form, ...] = ()
    value: TypeInformation | None = None
    key_before: KeyCodec | None = None
    key_types: tuple[TypeInformation, TypeInformation] | None = None

    def values(self, column: pa.Array, chunk: SnapshotChunk) -> pa.Array:
        value = self.value
        if value is None or not self.forms:
            return column
        form = next(form for form in self.forms if form.mark == chunk.type)
        if form.is_read_one_by_one:
            return value.to_array([value.migrate(item, form.type) for item in form.type.to_list(column)])
        return migrate_column(column, form.type, value)

    def keys(self, column: pa.Array, codec: KeyCodec) -> list[Any]:
        """Return the dict keys of a column of map keys."""
        if self.key_before is None or self.key_types is None:
            return codec.from_storage(column)
        before, (old, new) = self.key_before, self.key_types
        return [codec.dict_key(new.migrate(before.user_key(key), old)) for key in before.from_storage(column)]


def plan_conversion(
    descriptor: StateDescriptor[Any], stored: StoredState, keys: KeyCodec | None = None
) -> ReadConversion:
    """Return the conversion of a stored state.

    Args:
        descriptor: Declaration in the program.
        stored: The state in the snapshot.
        keys: Codec of the keys of a broadcast map.

    Raises:
        StateMigrationError: A declared type is not compatible.
        UserFunctionError: A serializer snapshot of the user raised.
    """
    value = declared = descriptor.type_info
    key: Any = None if keys is None else stored.description["key"]
    key_before = None if keys is None or key == keys.to_json() else codec_from_json(key)
    key_types = None if key_before is None else _key_types(descriptor, key)
    written = _written_types(stored)
    if [document for _, document in written] == [declared.to_json()]:
        return ReadConversion(key_before is not None, key_before=key_before, key_types=key_types)
    before = [(mark, type_from_json(document)) for mark, document in written]
    for _, old in before:
        if old != value:
            answer = check_compatibility(descriptor.name, value, old)
            if answer.is_incompatible():
                raise _migration_error(
                    descriptor, "elements" if keys is None else "values", old, declared, answer.reason
                )
            value = reconfigure(value, old)
    if all(old == value for _, old in before):
        return ReadConversion(key_before is not None, value=value, key_before=key_before, key_types=key_types)
    is_read_one_by_one = [len(before) > 1 and _needs_own_type(descriptor.name, value, old) for _, old in before]
    forms = tuple(_Form(*form, one) for form, one in zip(before, is_read_one_by_one, strict=True))
    return ReadConversion(True, forms, value, key_before, key_types)


def _written_types(stored: StoredState) -> list[tuple[Any, Any]]:
    """Return each type of the chunks with its mark, the type of the last chunk last."""
    found: list[tuple[Any, Any]] = []
    for chunk in reversed(stored.chunks):
        form = chunk.type, stored.type_of(chunk)
        if form not in found:
            found.insert(0, form)
    return found or [(None, stored.description["type"])]


def _needs_own_type(name: str, value: TypeInformation, old: TypeInformation) -> bool:
    """Return whether the current type, after several migrations, still cannot read values of an old one."""
    return old != value and (
        check_compatibility(name, value, old).is_incompatible() or reconfigure(value, old) is not value
    )


def _key_types(descriptor: Any, stored: Mapping[str, Any]) -> tuple[TypeInformation, TypeInformation]:
    before = None if stored["kind"] == "tagged" else type_from_json(stored["type"])
    now = descriptor.key_type_info
    if before is None or now is None:
        raise _migration_error(descriptor, "keys", before or "keys without a type", now or "keys without a type", "")
    answer = check_compatibility(descriptor.name, now, before)
    if answer.is_incompatible():
        raise _migration_error(descriptor, "keys", before, now, answer.reason)
    return before, now


def _migration_error(
    descriptor: StateDescriptor[Any], what: str, before: object, now: object, reason: str
) -> StateMigrationError:
    why = f": {reason}" if reason else ""
    return StateMigrationError(
        f"The {what} of operator state {descriptor.name!r} were written as {str(before)!r}, the program declares "
        f"{str(now)!r}, which is not compatible{why}. Declare it as it was, or give the new state another name."
    )
