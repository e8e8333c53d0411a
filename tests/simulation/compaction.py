"""The process that compacts, which may die, or go on after nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from holdfast.errors import HoldfastError, StorageError
from holdfast.runtime.compaction import CompactionExecutor
from holdfast.state.compaction_plan import CompactionPlan, common_lineage, layers
from holdfast.state.run_file import Lineage, RunHandle
from holdfast.storage.file_system import join
from holdfast.storage.local import LocalFileSystem
from tests.simulation import tasks, workload
from tests.simulation.primitives import SimulatedFuture
from tests.simulation.workload import Row
from tests.simulation.world import Process, World

Merge = Callable[[CompactionPlan, int], list[RunHandle]]
"""Carries out a plan, given how many key groups there are."""


class SimulatedCompaction(CompactionExecutor):
    """Carries out compactions in a process beside that of the driver."""

    def __init__(self, world: World, merge: Merge, max_parallelism: int) -> None:
        self._world, self._merge = world, merge
        self._max_parallelism = max_parallelism
        self._process: Process | None = None

    def submit(self, plan: CompactionPlan) -> Future[list[RunHandle]]:
        self._world.met["begun: compaction"] += 1
        future = SimulatedFuture(self._world)
        if self._process is None or self._process.is_dead:
            self._process = Process(self._world, "compaction")
        process = self._process

        def body() -> None:
            try:
                future.set_result(self._merge(plan, self._max_parallelism))
            except HoldfastError as error:
                self._world.note("compaction failed: compaction")
                future.set_exception(error)
            except BaseException:
                self._world.met["compaction failed: compaction"] += 1
                # Whoever waits learns that the process is dead by the end of its pipe.
                future.set_exception(StorageError("the process that compacts has died"))
                raise

        self._world.spawn(process, "compact", body)
        return future

    def close(self) -> None:
        """The process is killed, or notices only later that nobody waits."""
        if self._process is not None and not self._process.is_dead:
            if self._world.choices.below(2):
                self._world.note("compacts on after its driver has gone: compaction")
            else:
                self._process.kill()


def merge(plan: CompactionPlan, max_parallelism: int) -> list[RunHandle]:
    directory = _Root(plan.root)
    content = [(run, tasks.read_run(directory, run)) for run in plan.inputs]
    lineage = common_lineage(layers(plan.inputs))
    written = []
    for output in plan.outputs:
        part = [(run, rows) for run, rows in content if run.range.intersection(output.key_groups)]
        rows: dict[str, Row] = {}
        for _, of_run in part:
            rows.update(
                (key, value)
                for key, value in of_run.items()
                if workload.group_of(key, max_parallelism) in output.key_groups
            )
        if part:
            count = sum(run.lineage.count for run, _ in part)
            made_of = lineage if lineage is not None else Lineage.unknown(count, output.path)
            groups = (output.key_groups.start, output.key_groups.end)
            epoch = max(run.epoch for run, _ in part)
            written.append(tasks.write_run(directory, output.path, rows, groups, plan.token, epoch, made_of))
    return written


class _Root:
    """A job directory that is known by its path alone."""

    def __init__(self, path: str) -> None:
        self.fs: Any = LocalFileSystem()
        self._path = path

    def absolute(self, path: str) -> str:
        return join(self._path, path)
