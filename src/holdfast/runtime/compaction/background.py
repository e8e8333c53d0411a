"""Compaction beside the epochs of a job: what is offered at the end of one epoch comes back before a later one.

Nothing of it is in a task, and no epoch waits for it unless keys would have to be looked for in more runs than
`state.compaction.max-runs`. What is written belongs to no version until it is swapped in, between two epochs, in the
place of exactly what it was made of; if that is not there any more, the result is dropped. So a crash at any point
loses work and nothing else:

- a version that is restored names either the inputs or the output;
- inputs stay for as long as a checkpoint names them, and outputs that are not swapped in yet are protected from the
  sweeper as `live`;
- a deposed leader's outputs are named by nothing, and go when the next leader sweeps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import Final, NamedTuple

import humanfriendly

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange, range_of
from holdfast.kernel.secret import get_logger
from holdfast.runtime.compaction.executor import CompactionExecutor, compaction_executor
from holdfast.runtime.function.sink import owner_of
from holdfast.runtime.graph.plan import JobPlan, Step
from holdfast.state.compaction.layer import Layer, components, depth, layers
from holdfast.state.compaction.plan import CompactionPlan, Output, output_ranges, swap
from holdfast.state.compaction.policy import LayerRange, choose, choose_above
from holdfast.state.declaration.options import COMPACTION_ENABLED, COMPACTION_EXECUTOR, COMPACTION_MAX_RUNS
from holdfast.state.run.run_file import RunHandle
from holdfast.state.run.version import StateVersion
from holdfast.storage.job.job_directory import SHARED
from holdfast.storage.job.naming import FileName

logger = get_logger(__name__)

_LONGEST_WAIT: Final = 60.0
_FAILURES_TO_PAUSE: Final = 3
_PAUSED_EPOCHS: Final = 50
_LEAST_RUNS: Final = 3


VersionMap = dict[str, StateVersion]


class EpochTime(NamedTuple):
    """An epoch.

    Attributes:
        epoch: Its number.
        processing_time: In milliseconds.
    """

    epoch: int
    processing_time: int


@dataclass(frozen=True)
class _UnderWay:
    """A compaction that was submitted."""

    uid: str
    plan: CompactionPlan
    future: Future[list[RunHandle]]


@dataclass
class CompactionStatistics:
    """What compaction has done in this attempt.

    Attributes:
        swapped: Compactions whose result was swapped in.
        dropped: Compactions whose result came too late, or that failed.
        bytes_written: Size of all that was swapped in.
        waited: Seconds that epochs have waited.
        deepest: The most runs in which a key had to be looked for in an epoch.
    """

    swapped: int = 0
    dropped: int = 0
    bytes_written: int = 0
    waited: float = 0.0
    deepest: int = 0

    def plus(self, other: CompactionStatistics) -> CompactionStatistics:
        """Both together."""
        return CompactionStatistics(
            self.swapped + other.swapped,
            self.dropped + other.dropped,
            self.bytes_written + other.bytes_written,
            self.waited + other.waited,
            max(self.deepest, other.deepest),
        )

    def __str__(self) -> str:
        size = humanfriendly.format_size(self.bytes_written, binary=True)
        return (
            f"compaction: {self.swapped} results of {size} in all were taken, {self.dropped} dropped; epochs waited "
            f"{self.waited:.1f} s for it, and looked for keys in at most {self.deepest} runs"
        )


class Compaction:
    """The compactions of one job attempt. Driven by the thread that runs the epochs.

    Args:
        root: The job directory.
        token: Fencing token of the attempt.
        configuration: Of the job.
        executor: Carries out plans; None takes the one that the configuration names.

    Raises:
        ConfigurationError: An option has a value that is not possible.
    """

    def __init__(
        self, root: str, token: int, configuration: Configuration, executor: CompactionExecutor | None = None
    ) -> None:
        self._root = root
        self._token = token
        self._limit = configuration.get(COMPACTION_MAX_RUNS)
        if self._limit < _LEAST_RUNS:
            raise ConfigurationError(f"{COMPACTION_MAX_RUNS.key} is at least {_LEAST_RUNS}, not {self._limit!r}.")
        self._enabled = configuration.get(COMPACTION_ENABLED)
        self._executor = executor or compaction_executor(configuration.get(COMPACTION_EXECUTOR))
        self._under_way: list[_UnderWay] = []
        self._failures = 0
        self._paused = 0
        self._is_declared = False
        self._is_closed = False
        self.statistics = CompactionStatistics()

    def take_results(self, versions: Mapping[str, StateVersion], plan: JobPlan, now: EpochTime) -> VersionMap:
        """Return the versions with all results that are there; called before an epoch.

        Blocks while keys would have to be looked for in too many runs and a compaction is about to change that.

        Args:
            versions: The versions.
            plan: Says which subtasks there are.
            now: The last epoch.
        """
        swapped = self.statistics.swapped
        current = self._swap_in(dict(versions))
        started = time.monotonic()
        if self.statistics.swapped > swapped:
            # The next merge does not wait for the end of the epoch: it may well be done by then.
            self._begin(current, plan, now)
        while self._too_deep(current):
            self._begin(current, plan, now)
            busy = [one.future for one in self._under_way]
            if not busy or not wait_for(busy, _LONGEST_WAIT, return_when="FIRST_COMPLETED").done:
                logger.warning("an epoch does not wait any longer for the compaction of its state")
                break
            current = self._swap_in(current)
        self.statistics.waited += time.monotonic() - started
        deepest = max((depth(version.runs) for version in current.values()), default=0)
        self.statistics.deepest = max(self.statistics.deepest, deepest)
        return current

    def offer(self, versions: Mapping[str, StateVersion], plan: JobPlan, now: EpochTime) -> None:
        """Begin what is due; called after an epoch. Does not block.

        Args:
            versions: The versions after it.
            plan: Says which subtasks there are.
            now: The epoch.
        """
        # From its first epoch on the runs say how the program of this attempt has declared its state.
        self._is_declared = True
        self._begin(versions, plan, now)

    def _begin(self, versions: Mapping[str, StateVersion], plan: JobPlan, now: EpochTime) -> None:
        if not self._enabled:
            return
        if self._paused:
            self._paused -= 1
            return
        for step in plan.keyed_steps():
            for runs in components(versions[step.uid].runs):
                self._offer(step, layers(runs), now)

    def live(self) -> list[str]:
        """Return the paths of files that no version names yet."""
        return [output.path for one in self._under_way for output in one.plan.outputs]

    def close(self) -> None:
        """Give up what is under way; again is no change."""
        if self._is_closed:
            return
        self._is_closed = True
        self._executor.close()
        self._under_way.clear()
        if self.statistics.swapped or self.statistics.dropped:
            logger.info("%s", self.statistics)

    def _offer(self, step: Step, found: list[Layer], now: EpochTime) -> None:
        if len(found) >= self._limit // 2:
            self._executor.prepare()
        busy = self._busy_layers(found)
        window = choose_above(found, busy, self._limit) if busy else choose(found, self._limit)
        if window is None:
            return
        plan = self._plan(step, found, window, now)
        self._under_way.append(_UnderWay(step.uid, plan, self._executor.submit(plan)))

    def _busy_layers(self, found: Iterable[Layer]) -> int:
        """Return how many layers are older than the newest one that is being merged, and this one."""
        busy = {run.path for one in self._under_way for run in one.plan.inputs}
        return max((at for at, layer in enumerate(found, start=1) if layer.runs[0].path in busy), default=0)

    def _plan(self, step: Step, found: list[Layer], window: LayerRange, now: EpochTime) -> CompactionPlan:
        chosen = found[window.start : window.end]
        is_oldest = window.start == 0
        return CompactionPlan(
            self._root,
            tuple(run for layer in chosen for run in layer.runs),
            tuple(
                # By its name the leader may sweep it as soon as it is not `live` any more: a result that is dropped.
                Output(f"{SHARED}/{FileName.new(self._token, now.epoch, 0, owner_of(step.uid), at).format()}", part)
                for at, part in enumerate(output_ranges(chosen, is_oldest, _ranges(step)))
            ),
            is_oldest,
            now.processing_time if self._is_declared else None,
            self._token,
            tuple(run for layer in found[window.end :] for run in layer.runs) if is_oldest else (),
        )

    def _swap_in(self, versions: dict[str, StateVersion]) -> dict[str, StateVersion]:
        done = [one for one in self._under_way if one.future.done()]
        self._under_way = [one for one in self._under_way if not one.future.done()]
        for one in done:
            error = one.future.exception()
            if error is not None:
                self._failed(one, error)
                continue
            outputs = one.future.result()
            swapped = swap(versions[one.uid], one.plan.inputs, outputs) if one.uid in versions else None
            if swapped is None:
                self.statistics.dropped += 1
                continue
            versions[one.uid] = swapped
            self._failures = 0
            self.statistics.swapped += 1
            self.statistics.bytes_written += sum(run.size for run in outputs)
        return versions

    def _failed(self, one: _UnderWay, error: BaseException) -> None:
        """The state is what it was, only in more runs than it should be; try again later if it goes on like that."""
        self.statistics.dropped += 1
        self._failures += 1
        if self._failures >= _FAILURES_TO_PAUSE:
            self._paused = _PAUSED_EPOCHS
        logger.warning("%d runs of operator %r could not be compacted: %s", len(one.plan.inputs), one.uid, error)

    def _too_deep(self, versions: Mapping[str, StateVersion]) -> bool:
        is_possible = self._enabled and not self._paused
        return is_possible and any(depth(version.runs) > self._limit for version in versions.values())


def _ranges(step: Step) -> list[KeyGroupRange]:
    return [range_of(at, step.max_parallelism, step.parallelism) for at in range(step.parallelism)]
