"""Writer of run files: collects segments and writes them as one durable file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.kernel.key_group import key_groups_of
from holdfast.state.batch import split_into_batches
from holdfast.state.run_file import (
    ALIGNMENT,
    HASH,
    HEADER,
    POOL,
    Footer,
    RunHandle,
    RunMeta,
    SegmentEntry,
    block_digests,
    encode_trailer,
    run_path,
)
from holdfast.storage.file_system import FileSystem

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
