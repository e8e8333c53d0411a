"""Run files: immutable, sorted, checksummed containers of state; what an epoch changed is one of them.

`holdfast.state.run.run_writer` makes one, `open_run` maps one. Nothing is loaded when a run is opened: its footer is
read and checked once a process, and the blocks of a segment are checked when the segment is touched first.
`holdfast.state.run.run_footer` describes the layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from holdfast.errors import CorruptFileError, HoldfastError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.malformed import MALFORMED
from holdfast.state.run import run_fields
from holdfast.state.run.batch import COLUMN_BYTES
from holdfast.state.run.lineage import Lineage
from holdfast.state.run.run_cache import RunCache
from holdfast.state.run.run_footer import Footer, SegmentEntry, footer_digest, lineage_of, read_footer
from holdfast.storage.file_system.path import is_absolute
from holdfast.storage.file_system.scheme import FileSystem, join

HASH: Final = "hash"
POOL: Final = pa.system_memory_pool()
"""For bytes of runs. Arrow's own allocator takes 5 to 9 ms now and then for what takes less than one."""


@dataclass(frozen=True)
class RunHandle:
    """Names one run and says enough about it to tell whether the file is the one that was written.

    Attributes:
        path: Relative to the job directory; no other run ever has it, so it is the run's id.
        size: Of the whole file in bytes.
        footer_offset: Where the footer begins.
        digest: SHA-256 of the footer, hexadecimal.
        key_groups: First and last key group of the subtask that wrote it.
        rows: Number of rows of each state.
        token: Fencing token of the leader for whom it was written.
        epoch: The epoch in which it was written.
        least_timers: Time of the least timer left by domain ("event", "processing"), None if there is none.
        compacted: What it was compacted from, None for a run that an epoch wrote.
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

    @cached_property
    def lineage(self) -> Lineage:
        """What it stands for: the runs that it was compacted from, or itself."""
        return Lineage.of_leaf(self.path) if self.compacted is None else self.compacted

    @property
    def range(self) -> KeyGroupRange:
        """The key groups as a range."""
        return KeyGroupRange(*self.key_groups)

    def to_json(self) -> dict[str, Any]:
        """Return the handle as JSON."""
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
        """Read a handle from JSON.

        Raises:
            Any of `MALFORMED`: It is none.
        """
        return cls(
            run_fields.text(value, "path"),
            run_fields.whole(value, "size"),
            run_fields.whole(value, "footer_offset"),
            run_fields.text(value, "digest"),
            run_fields.key_groups(value),
            run_fields.counts(value, "rows"),
            run_fields.whole(value, "token"),
            run_fields.whole(value, "epoch"),
            run_fields.times(value, "least_timers"),
            lineage_of(value),
        )

    def __hash__(self) -> int:
        return hash((self.path, self.digest))


class Segment:
    """The rows of one state in one run, mapped.

    Args:
        blocks: The bytes of the run.
        entry: What its footer says about them.
        batch: Which record batch of the segment they are; None for all.
    """

    def __init__(self, blocks: _Blocks, entry: SegmentEntry, batch: int | None = None) -> None:
        self.entry = entry
        self._blocks = blocks
        self._batch = batch

    @property
    def path(self) -> str:
        """The file that it lies in."""
        return self._blocks.path

    @property
    def parts(self) -> tuple[Segment, ...]:
        """The segment by record batches, each as a segment whose columns are one array; itself if there is one.

        What is said about one key, of a map, may go on from one part to the next. Then the later ones count as newer.
        """
        return self._several or (self,)

    @cached_property
    def _several(self) -> tuple[Segment, ...]:
        starts = self.entry.batches
        if not starts and self.entry.length > COLUMN_BYTES:
            # Earlier versions wrote no more than one batch if they could, and did not say when they could not.
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
            CorruptFileError: A block of the segment is not what was written.
        """
        return self._read()

    @cached_property
    def hash(self) -> npt.NDArray[np.uint64]:
        """The hash of each row. Who looks for keys that are not there needs no other column, so none is unpacked."""
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
        except (pa.ArrowException, OSError, *MALFORMED) as error:
            raise CorruptFileError(self._blocks.path, entry.offset, f"segment {entry.name!r}: {error}.") from error

    def range(self, key_groups: KeyGroupRange) -> slice:
        """Return the rows of a range of key groups."""
        return self.entry.range(key_groups)

    def __len__(self) -> int:
        return self.entry.rows


class _Blocks:
    """The bytes of one mapped run, checked when they are touched first.

    Segments refer to it and not to their run, which refers to them: nothing may keep a file mapped that is not used,
    and circles live until Python looks for circles.
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
        """Return a stretch of the file after checking the blocks that it lies in, each once a process.

        Raises:
            CorruptFileError: A block is not what was written.
        """
        size = self._footer.block_size
        for block in range(offset // size, -(-(offset + length) // size)):
            if not self._checked[block]:
                self.check(block)
        return self._view[offset : offset + length]

    def check(self, block: int) -> None:
        """Check one block, also if that was done before."""
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
        """Return the segment of a state, None if the run has none."""
        return self._segments.get(name)

    def newest_first(self, name: str) -> tuple[Segment, ...]:
        """Return the parts of the segment of a state, in the order in which one looks for what counts."""
        segment = self._segments.get(name)
        return () if segment is None else segment.parts[::-1]

    def segment_names(self) -> list[str]:
        """Return the names of the states in the run."""
        return list(self._segments)

    def is_gone(self) -> bool:
        """Whether the mapping alone holds the file; a storage that cannot be asked now has it still."""
        try:
            return not self._blocks.fs.keeps_mapped(self.path)
        except (HoldfastError, OSError):
            return False

    def verify(self) -> None:
        """Check every byte of the file.

        Raises:
            CorruptFileError: A block is not what was written.
        """
        for block in range(self._blocks.count):
            self._blocks.check(block)


def open_run(fs: FileSystem, root: str, handle: RunHandle) -> RunReader:
    """Map a run and check that it is the one that the handle names; a process does both once.

    Raises:
        CorruptFileError: Truncated, changed, or another file than the handle says.
        FormatVersionError: Written by a newer version.
        NotExistError: The file is gone.
    """
    path = run_path(root, handle.path)
    status = fs.status(path)
    identity = (handle.digest, status.size, status.mtime)
    run = _open.get(path, identity)
    if run is None:
        run = _map(fs, path, handle)
        _open.put(path, identity, run)
    return run


def forget_runs() -> None:
    """Forget which runs this process has mapped and checked."""
    _open.clear()


def handle_of(fs: FileSystem, root: str, path: str) -> RunHandle:
    """Return the handle of a run of which nothing but the path is known, after checking its footer against its trailer.

    Raises:
        CorruptFileError: Truncated or changed.
        FormatVersionError: Written by a newer version.
    """
    target = run_path(root, path)
    view = fs.mmap(target)
    offset, data = read_footer(view, target)
    footer = Footer.decode(data, target, offset)
    rows = {name: entry.rows for name, entry in footer.segments.items()}
    meta = footer.meta
    groups = (meta.key_groups.start, meta.key_groups.end)
    return RunHandle(
        path,
        len(view),
        offset,
        footer_digest(data),
        groups,
        rows,
        meta.token,
        meta.epoch,
        dict(meta.least_timers),
        meta.lineage,
    )


_open: Final[RunCache[RunReader]] = RunCache(is_gone=RunReader.is_gone)


def run_path(root: str, path: str) -> str:
    """Return where a run is: paths are relative to the job directory, or absolute."""
    return path if is_absolute(path) else join(root, path)


def _map(fs: FileSystem, path: str, handle: RunHandle) -> RunReader:
    view = fs.mmap(path)
    try:
        if len(view) != handle.size:
            at = min(len(view), handle.size)
            raise CorruptFileError(path, at, f"it has {len(view)} bytes, but {handle.size} were written.")
        offset, data = read_footer(view, path)
        if offset != handle.footer_offset or footer_digest(data) != handle.digest:
            raise CorruptFileError(path, offset, "its footer is not the one that was written.")
    except CorruptFileError:
        fs.drop_copy(path)
        raise
    return RunReader(fs, path, view, Footer.decode(data, path, offset), offset)


def _require_rows(table: pa.Table, entry: SegmentEntry) -> None:
    """Make sure that there are as many rows as the footer says, and that each has a hash."""
    hashes = table.column(HASH)
    if table.num_rows != entry.rows or hashes.type != pa.uint64() or hashes.null_count:
        raise ValueError(f"it has {table.num_rows} rows of {table.schema.names!r:.200}, not {entry.rows} with a hash")


def _read_segment(data: memoryview, only: str | None, batch: int | None) -> pa.Table:
    source = pa.py_buffer(data)
    options = pa.ipc.IpcReadOptions(use_threads=False)  # what is compressed is small
    if only is not None:
        options.included_fields = [pa.ipc.open_file(source).schema.get_field_index(only)]
    file = pa.ipc.open_file(source, options=options, memory_pool=POOL)
    return file.read_all() if batch is None else pa.Table.from_batches([file.get_batch(batch)])
