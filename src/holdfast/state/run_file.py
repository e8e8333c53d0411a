"""Run files: immutable, sorted, checksummed files of state. Each epoch writes its changes as one run.

`RunWriter` collects segments and writes them as one durable file, `open_run` maps one. Opening a run loads nothing: its
footer is read and checked once per process, and the blocks of a segment are checked on first access.
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from holdfast.errors import CorruptFileError, FormatVersionError, HoldfastError
from holdfast.kernel.key_group import UPPER_BOUND_MAX_PARALLELISM, KeyGroupRange, key_groups_of
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.state.batch import COLUMN_BYTES, split_into_batches
from holdfast.storage.file_system import FileSystem, is_absolute, join

RECENT: Final = 16
_MODULUS: Final = 2**127 - 1
_BASE: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835 % _MODULUS
FORMAT_VERSION: Final = 1
BLOCK_SIZE: Final = 256 * 1024
ALIGNMENT: Final = 64
_END: Final = b"HFRUNEND"
_TRAILER: Final = struct.Struct("<QQ32s8s8s")
TRAILER_SIZE: Final = _TRAILER.size
R = TypeVar("R")
_MOST_RUNS: Final = 4096
_MOST_BYTES: Final = 32 * 1024 * 1024
_CHECKS_PER_PUT: Final = 4
Identity = tuple[str, int, int]
"""Digest of the footer, and the file's `content_mark`."""
HASH: Final = "hash"

# Fields of handles and footers are validated although checksums protect them: an attacker with write access to the
# storage can write any checksum.


def require_valid(holds: bool, field: str, value: object) -> None:
    """Reject the value of a field.

    Raises:
        ValueError: The condition does not hold.
    """
    if not holds:
        raise ValueError(f"{field} cannot be {value!r:.80}")


def read_int(value: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Return an integer field of at least `least` and at most 63 bits."""
    number = value[name]
    require_valid(type(number) is int and least <= number < 1 << 63, name, number)
    return int(number)


def read_text(value: Mapping[str, Any], name: str) -> str:
    """Return a text field that can be encoded."""
    found = value[name]
    require_valid(type(found) is str, name, found)
    found.encode()
    return str(found)


def read_times(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field of times by name, which may be None."""
    found = dict(value[name])
    require_valid(all(type(time) is int or time is None for time in found.values()), name, found)
    return found


def read_counts(value: Mapping[str, Any], name: str) -> dict[str, int]:
    """Return a field of row counts by name."""
    found = dict(value[name])
    require_valid(all(type(count) is int and count >= 0 for count in found.values()), name, found)
    return found


def read_key_groups(value: Mapping[str, Any]) -> tuple[int, int]:
    """Return first and last key group of a subtask."""
    first, last = value["key_groups"]
    holds = type(first) is int and type(last) is int and 0 <= first <= last < UPPER_BOUND_MAX_PARALLELISM
    require_valid(holds, "key_groups", value["key_groups"])
    return first, last


def read_ascending(value: Mapping[str, Any], name: str, end: int) -> tuple[int, ...]:
    """Return a field of strictly ascending integers from 0 to below `end`, empty if it is missing."""
    found = tuple(value.get(name, ()))
    require_valid(all(type(number) is int for number in found), name, found)
    is_in_order = all(before < after for before, after in pairwise(found))
    require_valid(not found or (is_in_order and found[0] >= 0 and found[-1] < end), name, found)
    return found


# A run that an epoch wrote is a *leaf*. A compacted run stands for the leaves that it was merged from, in order. Lists
# of leaves grow without bound, so a lineage has their number, a digest that composes (the digest of a concatenation
# follows from the digests of its parts), and the digests of the newest few. Sequences of runs whose digests agree up to
# a leaf have the same content up to it, however they were compacted.


@dataclass(frozen=True)
class Lineage:
    """The leaves of one run or of several runs in order.

    Attributes:
        count: Number of leaves.
        digest: Digest of their ids.
        recent: Digests of the newest leaves, oldest first; of all if there are at most `RECENT`. Digests instead of
            ids, because files that are named in a checkpoint document are kept, and compacted leaves must be deleted.
    """

    count: int = 0
    digest: int = 0
    recent: tuple[int, ...] = ()

    @classmethod
    def of_leaf(cls, run_id: str) -> Lineage:
        leaf = xxhash.xxh3_128_intdigest(run_id.encode()) % _MODULUS
        return cls(1, leaf, (leaf,))

    @classmethod
    def unknown(cls, count: int, run_id: str) -> Lineage:
        """Return the lineage of a run that was merged from different leaves in different key groups."""
        return cls(count, xxhash.xxh3_128_intdigest(b"unknown " + run_id.encode()) % _MODULUS)

    @classmethod
    def of_all(cls, parts: Iterable[Lineage]) -> Lineage:
        whole = cls()
        for part in parts:
            whole = whole + part
        return whole

    def __add__(self, newer: Lineage) -> Lineage:
        digest = (self.digest * pow(_BASE, newer.count, _MODULUS) + newer.digest) % _MODULUS
        # Own recent leaves may only precede the newer ones if no leaf is missing in between.
        before = self.recent if len(newer.recent) == newer.count else ()
        return Lineage(self.count + newer.count, digest, (*before, *newer.recent)[-RECENT:])

    @property
    def identity(self) -> tuple[int, int]:
        """Count and digest, which are equal for equal lists of leaves."""
        return self.count, self.digest

    @cached_property
    def positions(self) -> dict[tuple[int, int], int]:
        """The identity before each recent leaf and after the last one, with the number of leaves that follow."""
        found = {self.identity: 0}
        digest = self.digest
        for behind, leaf in enumerate(reversed(self.recent), start=1):
            digest = (digest - leaf) * _INVERSE % _MODULUS
            found[self.count - behind, digest] = behind
        return found

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "digest": _text(self.digest), "recent": [_text(leaf) for leaf in self.recent]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Lineage:
        """Read a lineage.

        Raises:
            Any of `PARSE_ERRORS`: The value is malformed.
        """
        recent = tuple(int(leaf, 16) for leaf in value["recent"])
        count = read_int(value, "count")
        require_valid(len(recent) <= min(count, RECENT), "recent", recent)
        return cls(count, int(value["digest"], 16), recent)


def _text(digest: int) -> str:
    return f"{digest:032x}"


_INVERSE: Final = pow(_BASE, -1, _MODULUS)


# Format of a run file::
#
#     0        b"HFRUN\x01\r\n", zeros up to 64
#     64       segments, each an Arrow IPC file, each at a multiple of 64
#     F        footer: one JSON object, UTF-8
#     F + n    trailer, 64 bytes: F and n (uint64, little endian), SHA-256 of the footer, 8 zeros, b"HFRUNEND"
#
# Every byte before the footer belongs to a block of 256 KiB (the last one is shorter) whose XXH3 is in the footer. The
# digest of the footer is in the handle, and so in the checkpoint's document. So every change is detected.

HEADER: Final = b"HFRUN\x01\r\n".ljust(ALIGNMENT, b"\0")


@dataclass(frozen=True)
class SegmentEntry:
    """Position and content of one segment.

    Attributes:
        name: Name of the state.
        offset: First byte in the file.
        length: Length in bytes, without padding.
        rows: Number of rows.
        key_groups: The key groups that have rows, ascending.
        first_rows: The first row of each of them.
        schema: Schema of the state: kind and types, as written by the layout.
        codec: Compression of the buffers, None if they are not compressed. Arrow detects it by itself; readers need it
            to know whether reading costs memory.
        batches: The first row of each record batch, if there are several.
    """

    name: str
    offset: int
    length: int
    rows: int
    key_groups: tuple[int, ...]
    first_rows: tuple[int, ...]
    schema: Mapping[str, Any]
    codec: str | None = None
    batches: tuple[int, ...] = ()

    def range(self, key_groups: KeyGroupRange) -> slice:
        """Return the rows of a range of key groups."""
        return slice(
            self._row(bisect_left(self.key_groups, key_groups.start)),
            self._row(bisect_right(self.key_groups, key_groups.end)),
        )

    def _row(self, index: int) -> int:
        return self.first_rows[index] if index < len(self.first_rows) else self.rows

    def part(self, first: int, stop: int) -> SegmentEntry:
        """Return the entry of some of the rows, as if they were a segment."""
        begin = bisect_right(self.first_rows, first) - 1
        end = bisect_left(self.first_rows, stop)
        starts = tuple(max(row - first, 0) for row in self.first_rows[begin:end])
        return replace(self, rows=stop - first, key_groups=self.key_groups[begin:end], first_rows=starts, batches=())

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "offset": self.offset,
            "length": self.length,
            "rows": self.rows,
            "key_groups": list(self.key_groups),
            "first_rows": list(self.first_rows),
            "schema": dict(self.schema),
            **({} if self.codec is None else {"codec": self.codec}),
            **({} if not self.batches else {"batches": list(self.batches)}),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SegmentEntry:
        """Read an entry of a footer.

        Raises:
            Any of `PARSE_ERRORS`: The value is malformed.
        """
        rows = read_int(value, "rows")
        groups = read_ascending(value, "key_groups", UPPER_BOUND_MAX_PARALLELISM)
        first_rows = read_ascending(value, "first_rows", rows)
        batches = read_ascending(value, "batches", rows)
        require_valid(len(groups) == len(first_rows), "first_rows", first_rows)
        require_valid(first_rows[:1] == (() if not rows else (0,)), "first_rows", first_rows)
        require_valid(batches[:1] in ((), (0,)), "batches", batches)
        return cls(
            read_text(value, "name"),
            read_int(value, "offset", ALIGNMENT),
            read_int(value, "length"),
            rows,
            groups,
            first_rows,
            dict(value["schema"]),
            None if value.get("codec") is None else read_text(value, "codec"),
            batches,
        )


@dataclass(frozen=True)
class RunMeta:
    """Metadata of a run.

    Attributes:
        key_groups: The key groups of the subtask that wrote it.
        max_parallelism: Number of key groups of the operator.
        token: Fencing token of the leader.
        epoch: The epoch.
        key: The key codec as JSON.
        least_timers: Time of the earliest remaining timer by domain ("event", "processing"), None if there is none.
        fired_through: For each timer segment, the time up to which all timers of the range have fired; rows of older
            runs up to it are obsolete.
        lineage: Lineage of a compacted run, None for a run that an epoch wrote.
    """

    key_groups: KeyGroupRange
    max_parallelism: int
    token: int
    epoch: int
    key: Any
    least_timers: Mapping[str, int | None] = field(default_factory=dict)
    fired_through: Mapping[str, int] = field(default_factory=dict)
    lineage: Lineage | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "key_groups": [self.key_groups.start, self.key_groups.end],
            "max_parallelism": self.max_parallelism,
            "token": self.token,
            "epoch": self.epoch,
            "key": self.key,
            "least_timers": dict(self.least_timers),
            "fired_through": dict(self.fired_through),
            **({} if self.lineage is None else {"lineage": self.lineage.to_json()}),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RunMeta:
        """Read the metadata from a footer.

        Raises:
            Any of `PARSE_ERRORS`: The value is malformed.
        """
        max_parallelism = read_int(value, "max_parallelism", 1)
        owned = KeyGroupRange(*read_key_groups(value))
        require_valid(owned.end < max_parallelism <= UPPER_BOUND_MAX_PARALLELISM, "key_groups", owned)
        return cls(
            owned,
            max_parallelism,
            read_int(value, "token"),
            read_int(value, "epoch"),
            value["key"],
            read_times(value, "least_timers"),
            read_times(value, "fired_through"),
            read_lineage(value),
        )


def read_lineage(value: Mapping[str, Any]) -> Lineage | None:
    """Return the lineage field of a footer or handle, None if there is none."""
    lineage = value.get("lineage")
    return None if lineage is None else Lineage.from_json(lineage)


@dataclass(frozen=True)
class Footer:
    """A decoded footer."""

    meta: RunMeta
    segments: Mapping[str, SegmentEntry]
    blocks: tuple[int, ...]
    block_size: int = BLOCK_SIZE

    def encode(self) -> bytes:
        fields = {
            "format_version": FORMAT_VERSION,
            **self.meta.to_json(),
            "segments": [entry.to_json() for entry in self.segments.values()],
            "block_size": self.block_size,
            "blocks": [f"{block:016x}" for block in self.blocks],
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def decode(cls, data: bytes, path: str, offset: int) -> Footer:
        """Read a footer whose digest has been checked.

        Raises:
            FormatVersionError: A newer release wrote it.
            CorruptFileError: Its digest is right, but its content is malformed.
        """
        try:
            fields = json.loads(data)
            version = read_int(fields, "format_version", 1)
            if version > FORMAT_VERSION:
                raise FormatVersionError(path, version, FORMAT_VERSION)
            entries = {entry.name: entry for entry in map(SegmentEntry.from_json, fields["segments"])}
            ends = [entry.offset + entry.length for entry in entries.values()]
            require_valid(all(end <= offset for end in ends), "the end of a segment", ends)
            block_size = read_int(fields, "block_size", 1)
            blocks = tuple(int(block, 16) for block in fields["blocks"])
            require_valid(len(blocks) == -(-offset // block_size), "blocks", blocks)
            return cls(RunMeta.from_json(fields), entries, blocks, block_size)
        except PARSE_ERRORS as error:
            raise CorruptFileError(path, offset, f"its footer cannot be read: {error!r:.300}.") from error


def block_digests(chunks: Iterable[bytes | memoryview], block_size: int = BLOCK_SIZE) -> Iterator[int]:
    """Yield the digest of each block of the concatenated chunks."""
    state, room = xxhash.xxh3_64(), block_size
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            part = view[:room]
            state.update(part)
            room -= len(part)
            view = view[len(part) :]
            if not room:
                yield state.intdigest()
                state, room = xxhash.xxh3_64(), block_size
    if room < block_size:
        yield state.intdigest()


def footer_digest(footer: bytes) -> str:
    return hashlib.sha256(footer).hexdigest()


def encode_trailer(footer_offset: int, footer: bytes) -> bytes:
    return _TRAILER.pack(footer_offset, len(footer), hashlib.sha256(footer).digest(), bytes(8), _END)


def read_footer(view: memoryview, path: str) -> tuple[int, bytes]:
    """Return offset and bytes of the footer of a mapped run, checked against its trailer.

    Raises:
        CorruptFileError: The file is truncated, changed, or not a run.
    """
    size = len(view)
    if size < len(HEADER) + TRAILER_SIZE or bytes(view[: len(HEADER)]) != HEADER:
        raise CorruptFileError(path, 0, f"it does not begin with the header of a run (it has {size} bytes).")
    at = size - TRAILER_SIZE
    offset, length, digest, zeros, end = _TRAILER.unpack(view[at:])
    if end != _END or zeros != bytes(8) or offset < len(HEADER) or offset + length != at:
        raise CorruptFileError(path, at, "it does not end with the trailer of a run: it is truncated or changed.")
    footer = bytes(view[offset:at])
    if hashlib.sha256(footer).digest() != digest:
        raise CorruptFileError(path, offset, "the digest of its footer does not match.")
    return offset, footer


def check_run(view: memoryview, path: str) -> None:
    """Check every byte of a run against its own footer. Only `open_run` checks whether it is the expected run.

    Raises:
        CorruptFileError: The file is truncated or changed.
        FormatVersionError: A newer release wrote it.
    """
    offset, data = read_footer(view, path)
    footer = Footer.decode(data, path, offset)
    found = tuple(block_digests([view[:offset]], footer.block_size))
    if found != footer.blocks:
        wrong = next(
            (at for at, (ours, theirs) in enumerate(zip(found, footer.blocks, strict=False)) if ours != theirs), 0
        )
        raise CorruptFileError(path, wrong * footer.block_size, "the checksum of a block does not match.")


class RunCache(Generic[R]):
    """Runs by path; the least recently used are dropped.

    A mapped run needs no memory of its own, but decompressed segments do, so their size is limited as well. A dropped
    run lives as long as it is in use.

    A deleted file occupies the disk as long as it is mapped, and processes are not notified of files that the leader
    deletes. So each new run triggers a check of a few others, in turn. At any time at most about a third of the known
    runs are deleted, however long the process lives.

    Args:
        most_runs: Maximum number of runs.
        most_bytes: Maximum number of decompressed bytes.
        is_gone: Returns whether the file of a run was deleted. Called during a task.
    """

    def __init__(
        self,
        most_runs: int = _MOST_RUNS,
        most_bytes: int = _MOST_BYTES,
        is_gone: Callable[[R], bool] = lambda _: False,
    ) -> None:
        self._most_runs, self._most_bytes = most_runs, most_bytes
        self._is_gone = is_gone
        self._check_order: deque[str] = deque()
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, tuple[Identity, R]] = OrderedDict()
        self._unpacked: dict[str, int] = {}

    def get(self, path: str, identity: Identity) -> R | None:
        """Return a run, None if it is unknown or its file has changed."""
        with self._lock:
            known = self._runs.get(path)
            if known is None or known[0] != identity:
                return None
            self._runs.move_to_end(path)
            return known[1]

    def put(self, path: str, identity: Identity, run: R) -> None:
        """Add a run, and drop some others whose files were deleted."""
        with self._lock:
            if path not in self._runs:
                self._check_order.append(path)
            self._runs[path] = identity, run
            self._runs.move_to_end(path)
            self._unpacked.pop(path, None)
            self._shrink()
            checked = self._next_to_check(path)
        gone = [known for known, one in checked if self._is_gone(one)]
        with self._lock:
            for known, one in checked:
                if known in gone and self._runs.get(known, (None, None))[1] is one:
                    self._drop(known)
                elif known in self._runs:
                    self._check_order.append(known)

    def _next_to_check(self, new: str) -> list[tuple[str, R]]:
        """Return the runs to check next, without those that were dropped meanwhile."""
        found: list[tuple[str, R]] = []
        for _ in range(len(self._check_order)):
            if len(found) == _CHECKS_PER_PUT:
                break
            path = self._check_order.popleft()
            if path == new:
                self._check_order.append(path)
            elif path in self._runs:
                found.append((path, self._runs[path][1]))
        return found

    def unpacked(self, path: str, size: int) -> None:
        """Count decompressed bytes of a run."""
        with self._lock:
            if path in self._runs:
                self._unpacked[path] = self._unpacked.get(path, 0) + size
                self._shrink()

    def drop(self, path: str) -> None:
        with self._lock:
            self._drop(path)

    def clear(self) -> None:
        with self._lock:
            self._runs.clear()
            self._unpacked.clear()
            self._check_order.clear()

    def _shrink(self) -> None:
        while len(self._runs) > self._most_runs:
            self._drop(next(iter(self._runs)))
        too_much = sum(self._unpacked.values()) - self._most_bytes
        for path in [path for path in self._runs if path in self._unpacked] if too_much > 0 else []:
            too_much -= self._unpacked[path]
            self._drop(path)
            if too_much <= 0:
                break

    def _drop(self, path: str) -> None:
        self._runs.pop(path, None)
        self._unpacked.pop(path, None)


POOL: Final = pa.system_memory_pool()
"""For bytes of runs. Arrow's default allocator sometimes takes 5 to 9 ms for an allocation that takes less than one."""


@dataclass(frozen=True)
class RunHandle:
    """Reference to one run, with the facts that identify its file.

    Attributes:
        path: Path relative to the job directory. It is unique, so it is the run's id.
        size: Size of the file in bytes.
        footer_offset: First byte of the footer.
        digest: SHA-256 of the footer, hexadecimal.
        key_groups: First and last key group of the subtask that wrote it.
        rows: Number of rows of each state.
        token: Fencing token of the leader.
        epoch: The epoch in which it was written.
        least_timers: Time of the earliest remaining timer by domain ("event", "processing"), None if there is none.
        compacted: Lineage of a compacted run, None for a run that an epoch wrote.
    """

    path: str
    size: int
    footer_offset: int
    digest: str
    key_groups: tuple[int, int]
    rows: Mapping[str, int]
    token: int
    epoch: int
    least_timers: Mapping[str, int | None] = field(default_factory=dict)
    compacted: Lineage | None = None

    @classmethod
    def create(
        cls, path: str, footer_offset: int, footer: bytes, meta: RunMeta, segments: Mapping[str, SegmentEntry]
    ) -> RunHandle:
        return cls(
            path,
            footer_offset + len(footer) + TRAILER_SIZE,
            footer_offset,
            footer_digest(footer),
            (meta.key_groups.start, meta.key_groups.end),
            {name: entry.rows for name, entry in segments.items()},
            meta.token,
            meta.epoch,
            dict(meta.least_timers),
            meta.lineage,
        )

    @cached_property
    def lineage(self) -> Lineage:
        """Lineage of the run: of the runs that it was compacted from, or of itself."""
        return Lineage.of_leaf(self.path) if self.compacted is None else self.compacted

    @property
    def range(self) -> KeyGroupRange:
        return KeyGroupRange(*self.key_groups)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "size": self.size,
            "footer_offset": self.footer_offset,
            "digest": self.digest,
            "key_groups": list(self.key_groups),
            "rows": dict(self.rows),
            "token": self.token,
            "epoch": self.epoch,
            "least_timers": dict(self.least_timers),
            **({} if self.compacted is None else {"lineage": self.compacted.to_json()}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunHandle:
        """Read a handle.

        Raises:
            Any of `PARSE_ERRORS`: The value is malformed.
        """
        return cls(
            read_text(value, "path"),
            read_int(value, "size"),
            read_int(value, "footer_offset"),
            read_text(value, "digest"),
            read_key_groups(value),
            read_counts(value, "rows"),
            read_int(value, "token"),
            read_int(value, "epoch"),
            read_times(value, "least_timers"),
            read_lineage(value),
        )

    def __hash__(self) -> int:
        return hash((self.path, self.digest))


class Segment:
    """The mapped rows of one state in one run.

    Args:
        blocks: The bytes of the run.
        entry: Entry of the footer.
        batch: Index of a record batch of the segment; None for all.
    """

    def __init__(self, blocks: _Blocks, entry: SegmentEntry, batch: int | None = None) -> None:
        self.entry = entry
        self._blocks = blocks
        self._batch = batch

    @property
    def path(self) -> str:
        return self._blocks.path

    @property
    def parts(self) -> tuple[Segment, ...]:
        """The record batches, each as a segment whose columns are single arrays; the segment itself if there is one.

        The entries of one map may continue in the next part. Later parts count as newer then.
        """
        return self._several or (self,)

    @cached_property
    def _several(self) -> tuple[Segment, ...]:
        starts = self.entry.batches
        if not starts and self.entry.length > COLUMN_BYTES:
            # Earlier releases wrote several batches only if they had to, and did not record them in the footer.
            starts = self._starts()
        if len(starts) < 2:
            return ()
        bounds = pairwise((*starts, self.entry.rows))
        return tuple(Segment(self._blocks, self.entry.part(*rows), at) for at, rows in enumerate(bounds))

    def _starts(self) -> tuple[int, ...]:
        data = self._blocks.verified(self.entry.offset, self.entry.length)
        with self._reading():
            file = pa.ipc.open_file(pa.py_buffer(data))
            rows = [file.get_batch(at).num_rows for at in range(file.num_record_batches)]
        return tuple(accumulate(rows[:-1], initial=0))

    @cached_property
    def table(self) -> pa.Table:
        """All rows, without a copy unless they are compressed.

        Raises:
            CorruptFileError: A block of the segment has changed.
        """
        return self._read()

    @cached_property
    def hash(self) -> npt.NDArray[np.uint64]:
        """The hash of each row. A lookup of missing keys needs no other column, so others are not decompressed."""
        is_mapped = self.entry.codec is None or "table" in self.__dict__
        table = self.table if is_mapped else self._read(HASH)
        hashes: npt.NDArray[np.uint64] = table.column(HASH).to_numpy()
        return hashes

    def _read(self, only: str | None = None) -> pa.Table:
        entry = self.entry
        data = self._blocks.verified(entry.offset, entry.length)
        with self._reading():
            table = _read_segment(data, only, self._batch)
            table.validate()
            _require_rows(table, entry)
        if entry.codec is not None:
            _open.unpacked(self._blocks.path, table.nbytes)
        return table

    @contextmanager
    def _reading(self) -> Iterator[None]:
        entry = self.entry
        try:
            yield
        except (pa.ArrowException, OSError, *PARSE_ERRORS) as error:
            raise CorruptFileError(self._blocks.path, entry.offset, f"segment {entry.name!r}: {error}.") from error

    def range(self, key_groups: KeyGroupRange) -> slice:
        return self.entry.range(key_groups)

    def __len__(self) -> int:
        return self.entry.rows


class _Blocks:
    """The bytes of one mapped run, checked on first access.

    Segments refer to this object and not to their run, which refers to them: a cycle would keep unused files mapped
    until the garbage collector runs.
    """

    def __init__(self, fs: FileSystem, path: str, view: memoryview, footer: Footer, footer_offset: int) -> None:
        self.path = path
        self.fs = fs
        self.count = len(footer.blocks)
        self._view = view
        self._footer = footer
        self._end = footer_offset
        self._checked = bytearray(self.count)

    def verified(self, offset: int, length: int) -> memoryview:
        """Return a part of the file after checking its blocks, each once per process.

        Raises:
            CorruptFileError: A block has changed.
        """
        size = self._footer.block_size
        for block in range(offset // size, -(-(offset + length) // size)):
            if not self._checked[block]:
                self.check(block)
        return self._view[offset : offset + length]

    def check(self, block: int) -> None:
        """Check one block, even if it was checked before."""
        start = block * self._footer.block_size
        end = min(start + self._footer.block_size, self._end)
        if xxhash.xxh3_64_intdigest(self._view[start:end]) != self._footer.blocks[block]:
            _open.drop(self.path)
            self.fs.drop_copy(self.path)
            raise CorruptFileError(self.path, start, f"the checksum of bytes {start} to {end} does not match.")
        self._checked[block] = 1


class RunReader:
    """One mapped run."""

    def __init__(self, fs: FileSystem, path: str, view: memoryview, footer: Footer, footer_offset: int) -> None:
        self.path = path
        self.meta = footer.meta
        self._blocks = _Blocks(fs, path, view, footer, footer_offset)
        self._segments = {name: Segment(self._blocks, entry) for name, entry in footer.segments.items()}

    def segment(self, name: str) -> Segment | None:
        return self._segments.get(name)

    def newest_first(self, name: str) -> tuple[Segment, ...]:
        """Return the parts of the segment of a state, newest first."""
        segment = self._segments.get(name)
        return () if segment is None else segment.parts[::-1]

    def segment_names(self) -> list[str]:
        return list(self._segments)

    def is_gone(self) -> bool:
        """Return whether the file was deleted; False if the storage does not answer."""
        try:
            return not self._blocks.fs.keeps_mapped(self.path)
        except (HoldfastError, OSError):
            return False

    def verify(self) -> None:
        """Check every byte of the file.

        Raises:
            CorruptFileError: A block has changed.
        """
        for block in range(self._blocks.count):
            self._blocks.check(block)


def open_run(fs: FileSystem, root: str, handle: RunHandle) -> RunReader:
    """Map a run and check that it is the file of the handle, once per process.

    Raises:
        CorruptFileError: The file is truncated, changed, or another one.
        FormatVersionError: A newer release wrote it.
        NotExistError: The file is missing.
    """
    path = run_path(root, handle.path)
    identity = (handle.digest, *fs.content_mark(path))
    run = _open.get(path, identity)
    if run is None:
        run = _map(fs, path, handle)
        _open.put(path, identity, run)
    return run


def forget_run(root: str, handle: RunHandle) -> None:
    """Drop a run that this process has mapped."""
    _open.drop(run_path(root, handle.path))


def forget_runs() -> None:
    """Drop all runs that this process has mapped."""
    _open.clear()


def handle_of(fs: FileSystem, root: str, path: str) -> RunHandle:
    """Return the handle of a run from its path, after checking its footer against its trailer.

    Raises:
        CorruptFileError: The file is truncated or changed.
        FormatVersionError: A newer release wrote it.
    """
    target = run_path(root, path)
    view = fs.mmap(target)
    offset, data = read_footer(view, target)
    footer = Footer.decode(data, target, offset)
    return RunHandle.create(path, offset, data, footer.meta, footer.segments)


_open: Final[RunCache[RunReader]] = RunCache(is_gone=RunReader.is_gone)


def run_path(root: str, path: str) -> str:
    """Return the path of a run, which is relative to the job directory, or absolute."""
    return path if is_absolute(path) else join(root, path)


def _map(fs: FileSystem, path: str, handle: RunHandle) -> RunReader:
    view = fs.mmap(path)
    try:
        if len(view) != handle.size:
            at = min(len(view), handle.size)
            raise CorruptFileError(path, at, f"it has {len(view)} bytes instead of {handle.size}.")
        offset, data = read_footer(view, path)
        if offset != handle.footer_offset or footer_digest(data) != handle.digest:
            raise CorruptFileError(path, offset, "its footer differs from the one that was written.")
    except CorruptFileError:
        fs.drop_copy(path)
        raise
    return RunReader(fs, path, view, Footer.decode(data, path, offset), offset)


def _require_rows(table: pa.Table, entry: SegmentEntry) -> None:
    """Check the number of rows, and that each row has a hash."""
    hashes = table.column(HASH)
    if table.num_rows != entry.rows or hashes.type != pa.uint64() or hashes.null_count:
        raise ValueError(
            f"it has {table.num_rows} rows of {table.schema.names!r:.200} instead of {entry.rows} with a hash"
        )


def _read_segment(data: memoryview, only: str | None, batch: int | None) -> pa.Table:
    source = pa.py_buffer(data)
    options = pa.ipc.IpcReadOptions(use_threads=False)  # compressed segments are small
    if only is not None:
        options.included_fields = [pa.ipc.open_file(source).schema.get_field_index(only)]
    file = pa.ipc.open_file(source, options=options, memory_pool=POOL)
    return file.read_all() if batch is None else pa.Table.from_batches([file.get_batch(batch)])


CODEC: Final = "zstd"
"""Arrow's codec of the buffers of compressed segments."""


@dataclass(frozen=True)
class SegmentData:
    """A segment to be written.

    Attributes:
        table: Its sorted rows, with a column `hash` (uint64) in an order in which key groups ascend.
        schema: Its schema, as JSON for the footer.
    """

    table: pa.Table
    schema: Mapping[str, Any]


class RunWriter:
    """Collects segments and writes them as one run."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._chunks: list[bytes | memoryview] = [HEADER]
        self._offset = len(HEADER)
        self._entries: dict[str, SegmentEntry] = {}

    def add(self, name: str, segment: SegmentData, max_parallelism: int, codec: str | None = None) -> None:
        """Append a segment.

        Args:
            name: Name of the state.
            segment: The segment.
            max_parallelism: Number of key groups of the operator.
            codec: Compression of its buffers; None for none.
        """
        batches = split_into_batches(segment.table)
        starts = tuple(accumulate((batch.num_rows for batch in batches[:-1]), initial=0))
        chunks = _encode(batches, codec)
        length = sum(map(len, chunks))
        hashes = segment.table.column(HASH).to_numpy()
        groups = key_groups_of(hashes, max_parallelism)
        first = np.flatnonzero(np.diff(groups, prepend=-1))
        self._entries[name] = SegmentEntry(
            name,
            self._offset,
            length,
            segment.table.num_rows,
            tuple(groups[first].tolist()),
            tuple(first.tolist()),
            segment.schema,
            codec,
            starts if len(starts) > 1 else (),
        )
        for chunk in chunks:
            self._append(chunk)
        self._append(bytes(-length % ALIGNMENT))

    def finish(self, path: str, meta: RunMeta) -> RunHandle:
        """Write the file durably, and return its handle. Blocks.

        Args:
            path: Path relative to the root; must not exist.
            meta: Metadata of the run.

        Raises:
            StorageError: It could not be written.
            AlreadyExistError: The path exists.
        """
        footer = Footer(meta, self._entries, tuple(block_digests(self._chunks))).encode()
        trailer = encode_trailer(self._offset, footer)
        self._fs.write_state(run_path(self._root, path), [*self._chunks, footer, trailer])
        return RunHandle.create(path, self._offset, footer, meta, self._entries)

    def _append(self, data: bytes | memoryview) -> None:
        if len(data):
            self._chunks.append(data)
            self._offset += len(data)


def write_run(
    fs: FileSystem,
    root: str,
    path: str,
    segments: Mapping[str, SegmentData],
    meta: RunMeta,
    *,
    compressed_up_to: int = 0,
) -> RunHandle:
    """Write one run; see `RunWriter`.

    Segments of at most `compressed_up_to` bytes are compressed. Reading them needs memory, while other segments are
    mapped.
    """
    writer = RunWriter(fs, root)
    for name in sorted(segments):
        codec = CODEC if segments[name].table.nbytes <= compressed_up_to else None
        writer.add(name, segments[name], meta.max_parallelism, codec)
    return writer.finish(path, meta)


class _Chunks:
    """A file object that keeps written buffers without a copy."""

    closed = False

    def __init__(self) -> None:
        self.chunks: list[memoryview] = []
        self._size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.chunks.append(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        return

    def close(self) -> None:
        return


def _encode(batches: Sequence[pa.Table], codec: str | None) -> list[memoryview]:
    kept = _Chunks() if len(batches) > 1 else None
    sink = pa.BufferOutputStream(POOL) if kept is None else pa.PythonFile(kept, mode="w")
    with pa.ipc.new_file(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for batch in batches:
            writer.write_table(batch)
    return [memoryview(sink.getvalue())] if kept is None else kept.chunks
