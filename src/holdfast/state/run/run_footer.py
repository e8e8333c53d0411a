r"""The footer of a run file: what is in it, where, and how to tell that it is what was written.

::

    0        b"HFRUN\x01\r\n", zeros up to 64
    64       segments, each an Arrow IPC file, each at a multiple of 64
    F        footer: one JSON object, UTF-8
    F + n    trailer, 64 bytes: F and n (uint64, little endian), SHA-256 of the footer, 8 zeros, b"HFRUNEND"

Every byte before the footer belongs to a block of 256 KiB (the last one is shorter) whose XXH3 is in the footer; the
digest of the footer is in the handle, and so in the checkpoint's document. So nothing can change unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import xxhash

from holdfast.errors import CorruptFileError, FormatVersionError
from holdfast.kernel.key_group import UPPER_BOUND_MAX_PARALLELISM, KeyGroupRange
from holdfast.kernel.malformed import MALFORMED
from holdfast.state.run import run_fields
from holdfast.state.run.lineage import Lineage

FORMAT_VERSION: Final = 1
BLOCK_SIZE: Final = 256 * 1024
ALIGNMENT: Final = 64
HEADER: Final = b"HFRUN\x01\r\n".ljust(ALIGNMENT, b"\0")
_END: Final = b"HFRUNEND"
_TRAILER: Final = struct.Struct("<QQ32s8s8s")
TRAILER_SIZE: Final = _TRAILER.size


@dataclass(frozen=True)
class SegmentEntry:
    """Where one segment is and what is in it.

    Attributes:
        name: Name of the state.
        offset: Of its first byte in the file.
        length: In bytes, without padding.
        rows: How many.
        key_groups: The key groups that have rows, ascending.
        first_rows: The first row of each of them.
        schema: What the segment holds: kind of state, types, as the layout wrote them.
        codec: What its buffers are compressed with, None if they are not. Arrow reads them in any case; it is said here
            because who maps a file wants to know what costs memory.
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
        """Return the entry of a stretch of the rows, as if they were the segment."""
        begin = bisect_right(self.first_rows, first) - 1
        end = bisect_left(self.first_rows, stop)
        starts = tuple(max(row - first, 0) for row in self.first_rows[begin:end])
        return replace(self, rows=stop - first, key_groups=self.key_groups[begin:end], first_rows=starts, batches=())

    def to_json(self) -> dict[str, Any]:
        """Return the entry as it stands in the footer."""
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
            Any of `MALFORMED`: It is none.
        """
        rows = run_fields.whole(value, "rows")
        groups = run_fields.ascending(value, "key_groups", UPPER_BOUND_MAX_PARALLELISM)
        first_rows = run_fields.ascending(value, "first_rows", rows)
        batches = run_fields.ascending(value, "batches", rows)
        run_fields.require(len(groups) == len(first_rows), "first_rows", first_rows)
        run_fields.require(first_rows[:1] == (() if not rows else (0,)), "first_rows", first_rows)
        run_fields.require(batches[:1] in ((), (0,)), "batches", batches)
        return cls(
            run_fields.text(value, "name"),
            run_fields.whole(value, "offset", ALIGNMENT),
            run_fields.whole(value, "length"),
            rows,
            groups,
            first_rows,
            dict(value["schema"]),
            None if value.get("codec") is None else run_fields.text(value, "codec"),
            batches,
        )


@dataclass(frozen=True)
class RunMeta:
    """Facts about a run as a whole.

    Attributes:
        key_groups: The range of the subtask that wrote it.
        max_parallelism: Number of key groups of the operator.
        token: Fencing token of the leader for whom it was written.
        epoch: The epoch.
        key: The key codec as JSON.
        least_timers: Time of the least timer left by domain ("event", "processing"), None if there is none.
        fired_through: For each timer segment the time up to which all timers of the range have fired; rows of older
            runs up to it are dead.
        lineage: What it was compacted from, None for a run that an epoch wrote.
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
        """Return the facts as they stand in the footer."""
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
        """Read the facts from a footer.

        Raises:
            Any of `MALFORMED`: They are none.
        """
        max_parallelism = run_fields.whole(value, "max_parallelism", 1)
        key_groups = KeyGroupRange(*run_fields.key_groups(value))
        run_fields.require(key_groups.end < max_parallelism <= UPPER_BOUND_MAX_PARALLELISM, "key_groups", key_groups)
        return cls(
            key_groups,
            max_parallelism,
            run_fields.whole(value, "token"),
            run_fields.whole(value, "epoch"),
            value["key"],
            run_fields.times(value, "least_timers"),
            run_fields.times(value, "fired_through"),
            lineage_of(value),
        )


def lineage_of(value: Mapping[str, Any]) -> Lineage | None:
    """Return the lineage in a footer or in the handle of a run, None if there is none."""
    lineage = value.get("lineage")
    return None if lineage is None else Lineage.from_json(lineage)


@dataclass(frozen=True)
class Footer:
    """The footer, decoded."""

    meta: RunMeta
    segments: Mapping[str, SegmentEntry]
    blocks: tuple[int, ...]
    block_size: int = BLOCK_SIZE

    def encode(self) -> bytes:
        """Return the footer as bytes."""
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
            FormatVersionError: Written by a newer version.
            CorruptFileError: It has the right digest and is no footer all the same.
        """
        try:
            fields = json.loads(data)
            version = run_fields.whole(fields, "format_version", 1)
            if version > FORMAT_VERSION:
                raise FormatVersionError(path, version, FORMAT_VERSION)
            entries = {entry.name: entry for entry in map(SegmentEntry.from_json, fields["segments"])}
            ends = [entry.offset + entry.length for entry in entries.values()]
            run_fields.require(all(end <= offset for end in ends), "the end of a segment", ends)
            block_size = run_fields.whole(fields, "block_size", 1)
            blocks = tuple(int(block, 16) for block in fields["blocks"])
            run_fields.require(len(blocks) == -(-offset // block_size), "blocks", blocks)
            return cls(RunMeta.from_json(fields), entries, blocks, block_size)
        except MALFORMED as error:
            raise CorruptFileError(path, offset, f"its footer cannot be read: {error!r:.300}.") from error


def block_digests(chunks: Iterable[bytes | memoryview], block_size: int = BLOCK_SIZE) -> Iterator[int]:
    """Yield the digest of each block of what the chunks make when they are put together."""
    state, room = xxhash.xxh3_64(), block_size
    for chunk in chunks:
        view = memoryview(chunk)
        while len(view):
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
    """Return the digest of a footer as it stands in a handle."""
    return hashlib.sha256(footer).hexdigest()


def encode_trailer(footer_offset: int, footer: bytes) -> bytes:
    """Return the last 64 bytes of a run."""
    return _TRAILER.pack(footer_offset, len(footer), hashlib.sha256(footer).digest(), bytes(8), _END)


def read_footer(view: memoryview, path: str) -> tuple[int, bytes]:
    """Return the offset and the bytes of the footer of a mapped run, checked against its trailer.

    Raises:
        CorruptFileError: Truncated, changed, or not a run.
    """
    size = len(view)
    if size < len(HEADER) + TRAILER_SIZE or bytes(view[: len(HEADER)]) != HEADER:
        raise CorruptFileError(path, 0, f"it does not begin as a run does (it has {size} bytes).")
    at = size - TRAILER_SIZE
    offset, length, digest, zeros, end = _TRAILER.unpack(view[at:])
    if end != _END or zeros != bytes(8) or offset < len(HEADER) or offset + length != at:
        raise CorruptFileError(path, at, "it does not end as a run does (cut off or changed).")
    footer = bytes(view[offset:at])
    if hashlib.sha256(footer).digest() != digest:
        raise CorruptFileError(path, offset, "the digest of its footer does not match.")
    return offset, footer


def check_run(view: memoryview, path: str) -> None:
    """Check every byte of a run against its own footer; whether it is the right run is seen when it is opened.

    Raises:
        CorruptFileError: Truncated or changed.
        FormatVersionError: Written by a newer version.
    """
    offset, data = read_footer(view, path)
    footer = Footer.decode(data, path, offset)
    found = tuple(block_digests([view[:offset]], footer.block_size))
    if found != footer.blocks:
        wrong = next(
            (at for at, (ours, theirs) in enumerate(zip(found, footer.blocks, strict=False)) if ours != theirs), 0
        )
        raise CorruptFileError(path, wrong * footer.block_size, "the checksum of a block does not match.")
