"""The elements of a chunk as bytes: an Arrow stream with a column `value`, and of maps a column `key`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import StateError
from holdfast.kernel.malformed import MALFORMED
from holdfast.state.operator.operator_snapshot import SnapshotChunk
from holdfast.state.run import batch


@dataclass(frozen=True)
class Payload:
    """A payload that is not written yet, and how many elements it has."""

    content: bytes
    count: int


def payloads_of(elements: slice, columns: Callable[[slice], Mapping[str, Any]]) -> Iterator[Payload]:
    """Return elements as payloads, in their order: nearly always one, several of what is more than a batch may have.

    Args:
        elements: Which.
        columns: Makes the columns of some of them. It may fail where these are longer than arrays of Arrow can be.

    Raises:
        Exception: Whatever `columns` raises for one element alone.
    """
    for count, found in batch.by_halves(
        elements.start, elements.stop, lambda first, last: columns(slice(first, last)), _is_a_batch
    ):
        yield Payload(_written(found), count)


def _is_a_batch(columns: Mapping[str, Any]) -> bool:
    arrays = columns.values()
    return all(isinstance(array, pa.Array) for array in arrays) and sum(a.nbytes for a in arrays) <= batch.BATCH_BYTES


def _written(columns: Mapping[str, pa.Array]) -> bytes:
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def table_of(data: bytes, chunk: SnapshotChunk, owner: str) -> pa.Table:
    """Return the elements of a chunk that belong to a subtask.

    Args:
        data: What holds the payload.
        chunk: Where in it the payload is.
        owner: Uid of the operator, for errors.

    Raises:
        StateError: There are no such elements.
    """
    try:
        table = pa.ipc.open_stream(pa.py_buffer(data).slice(chunk.offset, chunk.length)).read_all()
        table.validate(full=True)
        if table.num_rows != chunk.items:
            raise ValueError(f"there are {table.num_rows}")
    except (pa.ArrowException, OSError, EOFError, *MALFORMED) as error:
        place = "its document" if chunk.is_inline else repr(chunk.data.get("path"))
        raise StateError(
            f"{chunk.items} elements of operator state of {owner!r} cannot be read from {place:.300}: {error!r:.200}. "
            "Start from another checkpoint (-s PATH)."
        ) from error
    return table.slice(chunk.first, chunk.count)


@contextmanager
def readable(state: str) -> Iterator[None]:
    """Turn what it raises to take elements for what their type says, and they are not.

    Raises:
        StateError: They are not.
    """
    try:
        yield
    except (pa.ArrowException, *MALFORMED) as error:
        raise StateError(
            f"Operator state {state!r} in the checkpoint is not what its type says: {error!r:.200}. Start from another "
            "checkpoint (-s PATH)."
        ) from error
