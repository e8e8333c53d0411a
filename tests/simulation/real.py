"""Histories whose tasks are the real ones: state backend, runs, merging and Parquet files on the simulated disk.

They cost more, so fewer seeds have them. Their tasks run in the thread of the driver, one after the other; a stage may
have run twice, and its readers then read of either run.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.checkpoint.metadata import OperatorMetadata
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable.replica.checkpoint_view import CheckpointView
from holdfast.queryable.replica.checkpoint_view import to_record_batch as rows_of_layer
from holdfast.runtime.exchange.layout import arriving_layout
from holdfast.runtime.exchange.stage_message import EpochDescriptor
from holdfast.runtime.graph.plan import Stage
from holdfast.runtime.graph.stream_graph import StreamGraph
from holdfast.runtime.job.engine import EpochDriver, Outcome
from holdfast.runtime.task import worker_process
from holdfast.state.compaction import compact
from holdfast.state.compaction_plan import CompactionPlan
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.state.run_file import Footer, RunHandle, RunReader, forget_runs, read_footer
from holdfast.state.version import STATE_CACHE
from holdfast.state_processor.state_table import StateTable, StoredOperator
from holdfast.storage.scheme import file_system_for
from holdfast.testing.epoch_runner import Batches, LocalEngine, exchange
from tests.simulation import workload
from tests.simulation.evidence import Evidence
from tests.simulation.settings import Settings
from tests.simulation.tasks import Idling
from tests.simulation.workload import Payment, Row
from tests.simulation.world import World
from tests.stories import ledger

_STATES: Final = {workload.LEDGER: ("seq", "total"), workload.PARITY: ("parity_seq",)}
"""What is judged of the state of each operator, in the order of the dict."""


class RealEngine(LocalEngine):
    """Runs real tasks, whose worker process may be a new one at any time.

    Args:
        world: The world.
        inputs: Elements of each epoch.
        settings: How likely stages run again.
    """

    def __init__(self, world: World, inputs: Sequence[Sequence[Payment]], settings: Settings) -> None:
        super().__init__([{"payments": epoch} for epoch in inputs], is_bounded=True, interceptor=self._before_task)
        self._world, self._settings = world, settings

    def drive(self, driver: EpochDriver) -> Outcome:
        return super().drive(Idling(driver, self._world, self._settings.idle))

    def close(self) -> None:
        """A driver that ends takes nothing from others."""

    def _before_task(self, stage: int, partition: int) -> None:
        if self._world.choices.chance(self._settings.again):
            self._world.note("new worker process: task")
            forget()

    def _run_stage(
        self, stage: Stage, epoch: EpochDescriptor, inputs: Sequence[Batches], next_tasks: int
    ) -> list[Batches]:
        ran = super()._run_stage(stage, epoch, inputs, next_tasks)
        if not self._world.choices.chance(self._settings.again):
            return ran
        self._world.note("second attempt: stage")
        again = super()._run_stage(stage, epoch, inputs, next_tasks)
        if next_tasks:
            self._twice = (ran, again)
        return ran if self._world.choices.below(2) else again

    _twice: tuple[list[Batches], list[Batches]] | None = None

    def hand_over(self, stage: Stage, crossing: Sequence[Batches]) -> Sequence[Batches]:
        """Each task reads of the stage above what one of its runs has written."""
        twice, self._twice = self._twice, None
        if twice is None:
            return super().hand_over(stage, crossing)
        ticks = list(crossing[len(twice[0]) :])
        layout = arriving_layout(stage)
        placed = [
            exchange(layout, [batch for batches in (*ran, *ticks) for batch in batches], stage.tasks) for ran in twice
        ]
        return [placed[self._world.choices.below(2)][task] for task in range(stage.tasks)]


class Queryable:
    """What an operator is told, whose value states replicas read."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def get_state(self, descriptor: ValueStateDescriptor) -> Any:
        descriptor.set_queryable(descriptor.name)
        return self._context.get_state(descriptor)


class QueryableLedger(ledger.Ledger):
    """The first operator of the stories."""

    def open(self, runtime_context: Any) -> None:
        super().open(Queryable(runtime_context))


class QueryableParity(ledger.Parity):
    """The second one."""

    def open(self, runtime_context: Any) -> None:
        super().open(Queryable(runtime_context))


def graph(parallelism: int, sinks: int) -> StreamGraph:
    """The job of the stories, whose tasks use value, map and list state."""
    made = ledger.graph(workload.OUTPUTS["out"], two_stages=True, parallelism=parallelism)
    last: Any = made.sinks[0].inputs[0]
    for node, function in ((last, QueryableParity()), (last.inputs[0], QueryableLedger())):
        node.operator = replace(node.operator, function=function)
    return workload.with_sinks(made, sinks)


def merge(plan: CompactionPlan, max_parallelism: int) -> list[RunHandle]:
    """What the process that compacts does."""
    return compact(plan, file_system_for(plan.root))


def rows_of(data: bytes) -> list[Row]:
    """The rows of a file of output."""
    table = pq.read_table(io.BytesIO(data))
    return [list(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def plain(row: Row) -> tuple[Any, ...]:
    """What the dict tells of a row; the numbers of the second operator depend on the order in which rows arrive."""
    return tuple(row[1:6])


def wrong(rows: Sequence[Row]) -> str | None:
    """What is wrong with all rows together: a gap in the numbers of the second operator."""
    for parity in (0, 1):
        numbers = sorted(row[6] for row in rows if row[3] % 2 == parity)
        if numbers != list(range(1, len(numbers) + 1)):
            return f"the numbers of parity {parity} are {numbers}"
    return None


def state_of(operator: OperatorMetadata, root: str, evidence: Evidence) -> dict[str, Row]:
    """What the runs of an operator say of each key, in the order of the dict: numbers first."""
    stored = AuditedOperator(root, operator, 0, evidence)
    found: dict[str, Row] = {}
    for name in (name for name in _STATES[operator.uid] if name in stored.forms):
        table = pa.concat_tables(
            StateTable(stored, stored.form(name)).read([KeyGroupRange(0, operator.max_parallelism - 1)])
        )
        for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
            found.setdefault(key if operator.uid == workload.LEDGER else f"parity {key}", []).append(value)
    return found


def shown_by(view: CheckpointView) -> dict[str, dict[str, Row]] | None:
    """What a replica answers about each key, by operator; None if it cannot answer."""
    found: dict[str, dict[str, Row]] = {}
    for uid, names in _STATES.items():
        of_key = found.setdefault(uid, {})
        for state in (view.states[name] for name in names if name in view.states):
            if state.damage is not None:
                return None
            for rows in (rows_of_layer(layer, state.description) for layer in state.scan(None)):
                for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True):
                    of_key.setdefault(key if uid == workload.LEDGER else f"parity {key}", []).append(value)
    return found


@dataclass(frozen=True)
class AuditedOperator(StoredOperator):
    """Reads runs as commands do, from the disk itself: no fault comes between, and no worker shares what is open."""

    evidence: Evidence

    @cached_property
    def _runs(self) -> list[RunReader]:
        return [self._open(f"{self.root}/{run.path}") for run in self.metadata.runs]

    def _open(self, path: str) -> RunReader:
        view = memoryview(self.evidence.data(path))
        offset, data = read_footer(view, path)
        return RunReader(file_system_for(self.root), path, view, Footer.decode(data, path, offset), offset)


class RealModel(workload.Model):
    """What the dict of the stories makes of the input."""

    def __init__(self, inputs: Sequence[Sequence[Payment]]) -> None:
        super().__init__(inputs)
        self.rows = {row[0]: tuple(row[1:]) for row in ledger.model(inputs)}


def forget() -> None:
    """What the death of a worker process forgets."""
    worker_process._loaded.clear()
    STATE_CACHE.clear()
    forget_runs()


@contextmanager
def new_workers() -> Iterator[None]:
    """Begins and ends with nothing in the caches of this process."""
    forget()
    try:
        yield
    finally:
        forget()
