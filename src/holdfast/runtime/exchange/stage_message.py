"""What the tasks of one stage are told of an epoch: all get the same bytes, and each unpickles its own part of them.

The engine ships one function a stage, so what is in it reaches every task. The state of all subtasks lies in it as
slices, one a task: the runs of its key groups, its operator state, its watermark generators. To the others' a task pays
the copying of bytes.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from holdfast.kernel.key_group import subtask_of
from holdfast.runtime.exchange.descriptor import EpochDescriptor, SubtaskStates
from holdfast.runtime.graph.plan import Stage
from holdfast.state.run.run_file import RunHandle
from holdfast.state.run.version import StateVersion


@dataclass(frozen=True)
class StageMessage:
    """One attempt at one epoch, for one stage.

    Attributes:
        epoch: What all tasks need to know; no state.
        slices: The state of each task, pickled, one after the other.
        ends: Where each slice ends, as 64-bit numbers of this machine's byte order.
    """

    epoch: EpochDescriptor
    slices: bytes
    ends: bytes

    @classmethod
    def of(cls, epoch: EpochDescriptor, stage: Stage) -> StageMessage:
        """What the tasks of a stage are told.

        Args:
            epoch: The epoch with the state of all subtasks of all steps.
            stage: The stage.
        """
        versions: dict[int, dict[str, StateVersion]] = defaultdict(dict)
        states: dict[int, dict[str, SubtaskStates]] = defaultdict(dict)
        generators: dict[int, dict[str, dict[int, str]]] = defaultdict(dict)
        for step in stage.steps:
            for subtask, held in epoch.generators.get(step.uid, {}).items():
                generators[subtask][step.uid] = {subtask: held}
            if step.uid in epoch.versions:
                for subtask, runs in _by_subtask(epoch.versions[step.uid], step.max_parallelism, step.parallelism):
                    versions[subtask][step.uid] = StateVersion(tuple(runs))
            for subtask in range(step.parallelism if step.uid in epoch.operator_states else 0):
                state = epoch.state_of(step.uid, subtask)
                if state is not None:
                    states[subtask][step.uid] = {subtask: state}
        tasks = max(stage.tasks, 1 + max(generators, default=-1))  # where the source decides, there are 0 of the stage
        told = [tuple(part.get(task, {}) for part in (versions, states, generators)) for task in range(tasks)]
        slices = [pickle.dumps(part, pickle.HIGHEST_PROTOCOL) if any(part) else b"" for part in told]
        ends = np.cumsum([len(part) for part in slices], dtype=np.int64)
        common = replace(epoch, versions={}, operator_states={}, generators={})
        return cls(common, b"".join(slices), ends.tobytes())

    def for_task(self, partition: int) -> EpochDescriptor:
        """The epoch as one task sees it: with its own state and nobody else's."""
        ends = np.frombuffer(self.ends, np.int64)
        start = int(ends[partition - 1]) if 0 < partition <= len(ends) else 0
        end = int(ends[partition]) if partition < len(ends) else start
        if start == end:
            return self.epoch
        versions, states, generators = pickle.loads(memoryview(self.slices)[start:end])
        return replace(self.epoch, versions=versions, operator_states=states, generators=generators)


def _by_subtask(version: StateVersion, max_parallelism: int, parallelism: int) -> list[tuple[int, list[RunHandle]]]:
    """The runs that each subtask needs, in their order."""
    found: dict[int, list[RunHandle]] = {}
    for run in version.runs:
        first, last = (subtask_of(group, max_parallelism, parallelism) for group in run.key_groups)
        for subtask in range(first, last + 1):
            found.setdefault(subtask, []).append(run)
    return list(found.items())
