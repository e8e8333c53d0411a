"""One task of one stage in one epoch: a pure function from (versions, input rows) to (output rows, barrier).

It opens the base versions, drives every step of the stage with the elements that arrive, fires timers when its input
has ended, flushes one run a keyed step, lets sinks stage, and emits its barrier. Files are written under names of
this attempt alone, so an attempt that fails, is repeated or wakes up late harms nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import CorruptFileError, NotExistError, NullKeyError
from holdfast.runtime.exchange.barrier import Barrier
from holdfast.runtime.exchange.barrier_row import TICK, pack
from holdfast.runtime.exchange.chunk import Chunk
from holdfast.runtime.exchange.descriptor import EpochDescriptor
from holdfast.runtime.exchange.layout import BARRIER_SCHEMA, KEY, KEY_HASH, Arrival, EdgeLayout, SourceLayout
from holdfast.runtime.exchange.marker import MarkerFormat, MarkerReader
from holdfast.runtime.exchange.packed_layout import PackedLayout, arriving_layout
from holdfast.runtime.graph.event_time import greatest
from holdfast.runtime.graph.plan import Edge, Port, SourcePlan
from holdfast.runtime.operator import SubtaskInfo
from holdfast.runtime.task.garbage_collection import collect_young, paused_garbage_collection
from holdfast.runtime.task.identity import TaskIdentity
from holdfast.runtime.task.passing_step import PassingRun
from holdfast.runtime.task.reading_step import ReadingRun
from holdfast.runtime.task.record_writer import RecordWriter
from holdfast.runtime.task.step import KeyedRun, OperatorRun, StepRun
from holdfast.runtime.task.step_factory import create_step
from holdfast.runtime.task.worker import LoadedJob
from holdfast.storage.job.naming import FileName
from holdfast.types.conversion.stamps import times_in
from holdfast.types.information.type_information import TypeInformation
from holdfast.types.key.arrived_keys import ArrivedKeys
from holdfast.types.key.column_keys import arrived_keys

COLLECT_EVERY = 16
"""Batches between two looks for cycles that user functions have left."""


class StageTask:
    """Runs one stage for one partition.

    Args:
        job: The job attempt as loaded in this process.
        epoch: The attempt at the epoch.
        identity: Who this task is.
        next_tasks: Number of tasks of the stage below, each of which gets a marker; 0 for the last stage.
    """

    def __init__(self, job: LoadedJob, epoch: EpochDescriptor, identity: TaskIdentity, next_tasks: int) -> None:
        self._job = job
        self._epoch = epoch
        self._identity = identity
        self._stage = job.stage(identity.stage)
        self._next_tasks = next_tasks
        self._format = MarkerFormat(job.descriptor.plan.clocks)
        self._markers = MarkerReader(self._format)
        self._arriving = arriving_layout(self._stage) if self._stage.arriving else None
        self._writer = RecordWriter(self._stage, identity.partition, next_tasks, epoch.epoch, self._selector_of)
        self._consumers: dict[Port, list[tuple[StepRun, bool]]] = {}
        self._sources = SourceLayout(job.descriptor.plan.epoch_job_of(identity.stage).sources)
        self._steps: list[StepRun] = []
        try:
            for step in self._stage.steps:
                run = create_step(job, epoch, identity, step, self._stage.tasks)
                if run is not None:
                    self._steps.append(run)
        except BaseException:
            self._abort()
            raise
        for run in self._steps:
            firsts = run.step.first_inputs or len(run.step.inputs)
            for number, port in enumerate(run.step.inputs):
                self._consumers.setdefault(port, []).append((run, number >= firsts))
        self._side_ports = [port for port in {*self._consumers, *self._writer.origins()} if port.tag is not None]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the elements that leave, then the markers for the tasks below, or the barrier for the driver."""
        with paused_garbage_collection():
            yield from self._run(batches)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = False
        try:
            for number, _ in enumerate(self._taken(batches), start=1):
                if number % COLLECT_EVERY == 0:
                    collect_young()
                yield from self._writer.drain()
            observed = self._markers.observed()
            for run in self._steps:
                self._emit(run, run.meter.timed(run.end_of_input, observed))
                yield from self._writer.drain()
            yield from self._writer.rest()
            barrier = self._acknowledge()
            done = True
            yield self._barrier_rows(barrier)
        finally:
            if not done:
                self._abort()

    def _selector_of(self, edge: Edge) -> Callable[[Any], Any]:
        descriptor = self._job.descriptor
        info = SubtaskInfo(
            uid=edge.consumer,
            name=edge.consumer,
            job_id=descriptor.job_id,
            subtask=self._identity.partition,
            parallelism=self._stage.tasks,
            epoch=self._epoch.epoch,
            attempt_number=descriptor.attempt_number,
            processing_time=self._epoch.processing_time,
            is_restored=descriptor.is_restored,
            parameters=descriptor.parameters,
        )
        return self._job.selector(edge, info)

    def _abort(self) -> None:
        for run in self._steps:
            run.abort()

    def _taken(self, batches: Iterable[pa.RecordBatch]) -> Iterator[None]:
        """Takes what arrives; in between, what leaves can be drained."""
        for batch in batches:
            if self._arriving is None:
                yield from self._take_sources(batch)
            else:
                self._take(self._arriving, batch)
                yield

    def _take_sources(self, batch: pa.RecordBatch) -> Iterator[None]:
        for source, columns in self._sources.unpack(batch):
            port = Port("source", source.uid)
            for run, _ in self._consumers.get(port, ()):
                if isinstance(run, ReadingRun):
                    run.meter.came(port.name, columns)
                    reading = run.read(columns)
                    while (elements := run.meter.timed(next, reading, None)) is not None:
                        self._emit(run, elements)
                        yield
            self._deliver(port, _chunk(source, source.uid, columns), columns)
        yield

    def _take(self, arriving: EdgeLayout | PackedLayout, batch: pa.RecordBatch) -> None:
        try:
            controls, arrivals = arriving.unpack(batch)
            for content in controls:
                if content != TICK:
                    self._markers.take(content)
        except ValueError as error:
            raise CorruptFileError(self._job.directory.path, None, f"an exchange is damaged: {error}.") from error
        for arrival in arrivals:
            self._take_arrival(arrival)

    def _take_arrival(self, arrival: Arrival) -> None:
        edge = arrival.edge
        if edge.to_stage > self._stage.index:
            self._writer.hand_on(edge, arrival.batch)
            return
        consumer = self._consumer_of(edge)
        consumer.meter.came(edge.name, arrival.batch)
        if isinstance(consumer, PassingRun):
            self._emit(consumer, consumer.meter.timed(consumer.accept, _elements_of(edge, arrival.batch)))
            return
        if edge.broadcast:
            assert isinstance(consumer, OperatorRun)
            chunk = _chunk(edge, edge.origin.name, arrival.batch)
            self._emit(consumer, consumer.meter.timed(consumer.accept_broadcast, chunk))
            return
        if edge.key is None:
            self._accept(consumer, edge.second, _chunk(edge, edge.origin.name, arrival.batch))
            return
        assert isinstance(consumer, KeyedRun)
        keyed = consumer.accept_keyed_second if edge.second else consumer.accept_keyed

        def accept() -> Chunk:
            return keyed(_elements_of(edge, arrival.batch), *_keys_of(edge, arrival))

        self._emit(consumer, consumer.meter.timed(accept))

    def _consumer_of(self, edge: Edge) -> StepRun:
        found = self._consumers.get(Port("edge", edge.name))
        if not found:
            raise NotExistError(
                f"elements for {edge.consumer!r} arrived at partition {self._identity.partition}, which does not run it"
            )
        return found[0][0]

    def _accept(self, run: StepRun, is_second: bool, chunk: Chunk) -> None:
        """Hands elements to a step, for its second input or for its only or first one."""
        if is_second:
            assert isinstance(run, OperatorRun)
            self._emit(run, run.meter.timed(run.accept_second, chunk))
        elif isinstance(run, OperatorRun) and not isinstance(self._writer.layout, EdgeLayout):
            for piece in run.pieces(chunk):
                self._emit(run, run.meter.timed(run.accept, piece))
        else:  # each batch of rows that leaves costs the engine something
            self._emit(run, run.meter.timed(run.accept, chunk))

    def _emit(self, run: StepRun, chunk: Chunk | None) -> None:
        """Hands what a step emitted, side outputs included, to whoever reads it."""
        for tag, (elements, stamps) in run.side_outputs().items():
            for port in self._side_ports:
                if port.name == run.step.uid and port.tag == tag:
                    side = Chunk(self._type_at(port), run.step.uid, elements=elements, stamps=stamps)
                    self._deliver(port, side)
                    run.meter.timed(self._writer.send, port, side)
        if chunk is not None and len(chunk):
            port = Port("step", run.step.uid)
            self._deliver(port, chunk)
            run.meter.timed(self._writer.send, port, chunk)

    def _type_at(self, port: Port) -> TypeInformation:
        readers = self._consumers.get(port)
        if readers:
            run, is_second = readers[0]
            operator = run.step.operator
            second_type = operator.second_type if is_second and operator is not None else None
            return run.step.input_type if second_type is None else second_type
        return next(edge.element_type for edge in self._stage.leaving if edge.origin == port)

    def _deliver(self, port: Port, chunk: Chunk, columns: pa.RecordBatch | None = None) -> None:
        """Hands elements to the steps of the stage that read them; those of a source also leave here.

        Args:
            port: Where they come from.
            chunk: They.
            columns: As they came from a source, None for what a step has emitted.
        """
        for run, is_second in self._consumers.get(port, ()):
            if isinstance(run, ReadingRun):
                continue  # it has read them
            if columns is not None:
                run.meter.came(port.name, columns)
            self._accept(run, is_second, chunk)
        if columns is not None:
            self._writer.send(port, chunk)

    def _acknowledge(self) -> Barrier:
        reports = [run.meter.counted(run.meter.timed(run.report)) for run in self._steps]
        for run in self._steps:
            run.succeeded()
        return Barrier(
            stage=self._identity.stage,
            partition=self._identity.partition,
            attempt=self._identity.attempt,
            steps=tuple(reports),
            read=self._markers.digest(),
            observed=greatest(
                self._markers.observed(), *({r.uid: r.observed} for r in reports if r.observed is not None)
            ),
            listed=self._markers.listed() if self._epoch.attempt else (),
        )

    def _barrier_rows(self, barrier: Barrier) -> pa.RecordBatch:
        content = pack(barrier, self._job.directory, self._new_name, self._markers.contents())
        if self._writer.layout is not None:
            marker = self._format.marker(barrier.head, barrier.observed)
            rows = self._format.rows(marker, content, barrier.partition, self._next_tasks)
            return self._writer.layout.control(rows)
        return pa.RecordBatch.from_arrays([pa.array([content], pa.binary())], schema=BARRIER_SCHEMA)

    def _new_name(self) -> FileName:
        token, epoch = self._job.descriptor.token, self._epoch
        return FileName.new(token, epoch.epoch, epoch.attempt, "barrier", self._identity.partition)


def _chunk(carrier: Edge | SourcePlan, uid: str, batch: pa.RecordBatch) -> Chunk:
    if isinstance(carrier, Edge) and carrier.time_column is not None:
        times = times_in(batch.column(carrier.time_column))
        return Chunk(carrier.element_type, uid, batch=batch, stamps=times)
    if carrier.stamped:
        return Chunk.of_stamped_batch(carrier.element_type, uid, batch)
    return Chunk(carrier.element_type, uid, batch=batch)


def _elements_of(edge: Edge, batch: pa.RecordBatch) -> Chunk:
    if edge.key is not None and edge.key.spec.selector is not None:
        batch = batch.select([name for name in batch.schema.names if name not in (KEY, KEY_HASH)])
    return _chunk(edge, edge.origin.name, batch)


def _keys_of(edge: Edge, arrival: Arrival) -> tuple[Sequence[Any], npt.NDArray[np.uint64]]:
    assert edge.key is not None
    assert arrival.hashes is not None
    codec, batch = edge.key.codec, arrival.batch
    if edge.key.spec.selector is not None:
        stored = batch.column(batch.schema.get_field_index(KEY))
        told = codec.telling_stored(stored)
        return codec.from_storage(stored) if told is None else ArrivedKeys(codec, told), arrival.hashes
    columns = [batch.column(batch.schema.get_field_index(name)) for name in edge.key.spec.columns]
    try:
        return arrived_keys(codec, columns), arrival.hashes
    except NullKeyError as error:
        raise NullKeyError(edge.consumer, row=error.row) from error
