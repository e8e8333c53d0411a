"""The kinds of histories: tasks that do the work of real ones, or real ones; by epochs, or in real time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from holdfast.checkpoint.metadata import OperatorMetadata
from holdfast.queryable.replica.checkpoint_view import CheckpointView
from holdfast.runtime.graph.stream_graph import StreamGraph
from holdfast.runtime.job.engine import Engine
from holdfast.state.compaction_plan import CompactionPlan
from holdfast.state.run_file import RunHandle
from tests.simulation import compaction, real, realtime, tasks, workload
from tests.simulation.evidence import Evidence
from tests.simulation.tasks import SimulatedEngine
from tests.simulation.workload import Model, Row
from tests.simulation.world import World


@dataclass(frozen=True)
class Kind:
    """What differs.

    Attributes:
        graph: The job with some parallelism and so many sinks.
        engine: Runs its tasks.
        merge: What the process that compacts does.
        model: What a plain dict makes of the input.
        rows_of: The rows of a file of output.
        plain: What the dict tells of a row.
        wrong: What is wrong with all rows together.
        state_of: What the runs of an operator say of each key.
        shown_by: What a replica says of each key of each operator, None if it cannot answer; None where replicas read
            the files of tasks that are not real.
        surroundings: What is simulated for its tasks, given the world.
        epochs: How many epochs of input histories have.
        intervals: How long it may be from one checkpoint to the next.
        timeouts: How long a checkpoint may take, if histories differ in that.
        concurrent: How many checkpoints may be under way, if histories differ in that.
        at_end: Judges what is left when the job has ended.
    """

    graph: Callable[[int, int], StreamGraph]
    engine: Callable[..., Engine]
    merge: Callable[[CompactionPlan, int], list[RunHandle]]
    model: Callable[[Sequence[Sequence[workload.Payment]]], Model]
    rows_of: Callable[[bytes], list[Row]]
    plain: Callable[[Row], tuple[Any, ...]]
    wrong: Callable[[Sequence[Row]], str | None]
    state_of: Callable[[OperatorMetadata, str, Evidence], dict[str, Row]]
    shown_by: Callable[[CheckpointView], dict[str, dict[str, Row]] | None] | None
    surroundings: Callable[[World], AbstractContextManager[None]] = lambda world: nullcontext()
    epochs: Sequence[int] = (5, 10, 20)
    intervals: Sequence[str] = ("300 ms", "", "")
    timeouts: Sequence[str] = ()
    concurrent: Sequence[int] = ()
    at_end: Callable[[World], None] = lambda world: None


LIGHT: Final = Kind(
    workload.graph,
    SimulatedEngine,
    compaction.merge,
    Model,
    json.loads,
    workload.plain,
    workload.broken_chain,
    tasks.state_of,
    None,
)
REAL: Final = Kind(
    real.graph,
    real.RealEngine,
    real.merge,
    real.RealModel,
    real.rows_of,
    real.plain,
    real.wrong,
    real.state_of,
    real.shown_by,
)
REAL_TIME: Final = Kind(
    realtime.graph,
    realtime.SimulatedRealTimeEngine,
    real.merge,
    realtime.RealTimeModel,
    real.rows_of,
    real.plain,
    real.wrong,
    real.state_of,
    real.shown_by,
    realtime.in_real_time,
    (3, 6, 12),
    ("20 ms", "5 ms", "100 ms"),
    ("10 min", "1 s"),
    (1, 2, 4),
    realtime.require_tasks_ended,
)
KINDS: Final = {"light": LIGHT, "real": REAL, "real-time": REAL_TIME}
