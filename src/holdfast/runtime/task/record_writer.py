"""Where elements leave a task: the edges that cross the exchange below its stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import HoldfastError, NullKeyError, OutputTypeError
from holdfast.runtime.exchange.chunk import Chunk
from holdfast.runtime.exchange.layout import KEY, KEY_HASH, EdgeLayout
from holdfast.runtime.exchange.packed_layout import PackedLayout, Packer, leaving_layout
from holdfast.runtime.graph.plan import Edge, KeyPlan, Port, Stage
from holdfast.runtime.operator import user_error


class RecordWriter:
    """Packs what leaves one task; `drain` yields it.

    Args:
        stage: The stage of the task.
        partition: Its partition, by which elements without a key are spread over the next stage.
        next_tasks: Number of tasks of the next stage, 0 if there is none.
        epoch: For error messages.
        selector_of: What computes the keys of an edge in this task.
    """

    def __init__(
        self,
        stage: Stage,
        partition: int,
        next_tasks: int,
        epoch: int,
        selector_of: Callable[[Edge], Callable[[Any], Any]],
    ) -> None:
        self.layout = layout = leaving_layout(stage)
        self._packer = Packer(layout, next_tasks, stage.batch_rows) if isinstance(layout, PackedLayout) else None
        self._next = (stage.index + 1, next_tasks, partition)
        self._epoch = epoch
        self._by_origin: dict[Port, list[Edge]] = {}
        self._selectors: dict[str, Callable[[Any], Any]] = {}
        for edge in stage.leaving:
            if edge.from_stage == stage.index:
                self._by_origin.setdefault(edge.origin, []).append(edge)
                if edge.key is not None and edge.key.spec.selector is not None:
                    self._selectors[edge.name] = selector_of(edge)
        self._packed: list[pa.RecordBatch] = []

    def origins(self) -> set[Port]:
        """The ports whose elements leave."""
        return set(self._by_origin)

    def send(self, port: Port, chunk: Chunk) -> None:
        """Packs a chunk for every edge that starts at `port`."""
        edges = self._by_origin.get(port, [])
        for piece in chunk.fitting() if edges else ():
            for edge in edges:
                batch = piece.stamped_batch() if edge.carries_times else piece.batch
                if edge.key is not None and edge.key.spec.selector is not None:
                    batch = self._with_key(edge, edge.key, piece, batch)
                self.hand_on(edge, batch)

    def hand_on(self, edge: Edge, batch: pa.RecordBatch) -> None:
        """Packs columns that are already those of the edge."""
        targets = edge.targets(*self._next)
        if self._packer is not None:
            self._packed += self._packer.add(edge, batch, targets)
            return
        assert isinstance(self.layout, EdgeLayout)
        self._packed += [self.layout.pack(edge, batch, target) for target in targets]

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yields what was packed since the last call; messages are held back until they are worth sending."""
        packed, self._packed = self._packed, []
        yield from packed

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yields all that was not sent yet."""
        yield from self.drain()
        if self._packer is not None:
            yield from self._packer.rest()

    def _with_key(self, edge: Edge, key: KeyPlan, chunk: Chunk, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = _selected(self._selectors[edge.name], chunk.elements, edge.consumer, self._epoch)
        dict_keys = _dict_keys(key, keys, edge.consumer)
        hashes = key.codec.hashes(dict_keys).view(np.int64)
        names = [*batch.schema.names, KEY, KEY_HASH]
        return pa.RecordBatch.from_arrays(
            [*batch.columns, key.codec.storage_array(dict_keys), pa.array(hashes)], names=names
        )


def _dict_keys(key: KeyPlan, keys: list[Any], uid: str) -> list[Any]:
    try:
        return list(map(key.codec.dict_key, keys))
    except NullKeyError as error:
        raise NullKeyError(uid, row=next((at for at, value in enumerate(keys) if value is None), None)) from error
    except OutputTypeError as error:
        raise OutputTypeError(
            uid, f"What the key selector of operator {uid!r} returned cannot be a key: {error}", declared=error.declared
        ) from error


def _selected(select: Callable[[Any], Any], elements: list[Any], uid: str, epoch: int) -> list[Any]:
    try:
        return list(map(select, elements))
    except HoldfastError:
        raise
    except Exception as error:
        raise user_error(error, uid, None, epoch, "selecting a key") from error
