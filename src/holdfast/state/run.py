"""Run files: immutable, sorted, checksummed containers of state; what an epoch changed is one of them.

`holdfast.state.run_writer` makes one, `open_run` maps one. Nothing is loaded when a run is opened: its footer is read
and checked once a process, and the blocks of a segment are checked when the segment is touched first.
`holdfast.state.run_footer` describes the layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from holdfast.errors import CorruptFileError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.lineage import Lineage
from holdfast.state.open_runs import OpenRuns
from holdfast.state.run_footer import Footer, SegmentEntry, footer_digest, lineage_of, read_footer
from holdfast.storage.file_system import FileSystem, join
from holdfast.storage.path import is_absolute

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
        """Read a handle from JSON."""
        first, last = value["key_groups"]
        return cls(
            value["path"],
            value["size"],
            value["footer_offset"],
            value["digest"],
            (first, last),
            dict(value["rows"]),
            value["token"],
            value["epoch"],
            dict(value["least_timers"]),
            lineage_of(value),
        )

    def __hash__(self) -> int:
        return hash((self.path, self.digest))


class Segment:
    """The rows of one state in one run, mapped."""

    def __init__(self, run: RunReader, entry: SegmentEntry) -> None:
        self.entry = entry
        self._run = run

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
        data = self._run.verified(entry.offset, entry.length)
        try:
            table = _read_segment(data, only)
        except (pa.ArrowException, OSError) as error:
            raise CorruptFileError(self._run.path, entry.offset, f"segment {entry.name!r}: {error}.") from error
        if entry.codec is not None:
            _open.unpacked(self._run.path, table.nbytes)
        return table

    def range(self, key_groups: KeyGroupRange) -> slice:
        """Return the rows of a range of key groups."""
        return self.entry.range(key_groups)

    def __len__(self) -> int:
        return self.entry.rows


class RunReader:
    """One mapped run."""

    def __init__(self, fs: FileSystem, path: str, view: memoryview, footer: Footer, footer_offset: int) -> None:
        self.path = path
        self.meta = footer.meta
        self._fs = fs
        self._view = view
        self._footer = footer
        self._end = footer_offset
        self._checked = bytearray(len(footer.blocks))
        self._segments = {name: Segment(self, entry) for name, entry in footer.segments.items()}

    def segment(self, name: str) -> Segment | None:
        """Return the segment of a state, None if the run has none."""
        return self._segments.get(name)

    def segment_names(self) -> list[str]:
        """Return the names of the states in the run."""
        return list(self._segments)

    def verified(self, offset: int, length: int) -> memoryview:
        """Return a stretch of the file after checking the blocks that it lies in, each once a process.

        Raises:
            CorruptFileError: A block is not what was written.
        """
        size = self._footer.block_size
        for block in range(offset // size, -(-(offset + length) // size)):
            if not self._checked[block]:
                self._check(block)
        return self._view[offset : offset + length]

    def verify(self) -> None:
        """Check every byte of the file.

        Raises:
            CorruptFileError: A block is not what was written.
        """
        for block in range(len(self._footer.blocks)):
            self._check(block)

    def _check(self, block: int) -> None:
        start = block * self._footer.block_size
        end = min(start + self._footer.block_size, self._end)
        if xxhash.xxh3_64_intdigest(self._view[start:end]) != self._footer.blocks[block]:
            _open.drop(self.path)
            self._fs.drop_copy(self.path)
            raise CorruptFileError(self.path, start, f"the checksum of bytes {start} to {end} does not match.")
        self._checked[block] = 1


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


_open: Final = OpenRuns()


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


def _read_segment(data: memoryview, only: str | None) -> pa.Table:
    source = pa.py_buffer(data)
    options = pa.ipc.IpcReadOptions(use_threads=False)  # what is compressed is small
    if only is not None:
        options.included_fields = [pa.ipc.open_file(source).schema.get_field_index(only)]
    return pa.ipc.open_file(source, options=options, memory_pool=POOL).read_all()
