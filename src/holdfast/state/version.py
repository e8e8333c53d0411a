"""State versions, which are ordered lists of runs, and the difference between a cached version and a newer one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.run_file import Lineage, RunHandle


@dataclass(frozen=True)
class VersionStep:
    """A point between the runs of a version.

    Attributes:
        end: Number of older runs.
        lineage: Lineage of these runs.
        start: Number of runs before the last of them, or before those that one compaction wrote together with it.
    """

    end: int
    lineage: Lineage
    start: int


@dataclass(frozen=True)
class StateVersion:
    """The state of an operator, or of a range of its key groups, at the end of an epoch.

    Attributes:
        runs: Oldest first; newer runs take precedence.
    """

    runs: tuple[RunHandle, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The ids of the runs in order, which identify the version."""
        return tuple(run.path for run in self.runs)

    @cached_property
    def steps(self) -> tuple[VersionStep, ...]:
        """Lineage of the version up to each run, oldest first; the first step is empty.

        Runs that one compaction wrote for different key groups have the same lineage; they are one step.
        """
        steps = [VersionStep(0, Lineage(), 0)]
        last = None
        for position, run in enumerate(self.runs, start=1):
            if run.compacted is not None and run.compacted == last:
                before = steps.pop()
                steps.append(VersionStep(position, before.lineage, before.start))
            else:
                steps.append(VersionStep(position, steps[-1].lineage + run.lineage, position - 1))
            last = run.compacted
        return tuple(steps)

    @property
    def lineage(self) -> Lineage:
        return self.steps[-1].lineage

    def for_range(self, key_groups: KeyGroupRange) -> StateVersion:
        """Return the version without runs that do not overlap a range of key groups."""
        return StateVersion(tuple(run for run in self.runs if run.range.intersection(key_groups)))

    def least_timer(self, domain: str) -> int | None:
        """Return a lower bound of the time of all timers, None if there are none.

        It is the earliest timer that runs report for their range. After a change of parallelism that timer may be gone.

        Args:
            domain: "event" or "processing".
        """
        newer: list[KeyGroupRange] = []
        least: list[int] = []
        for run in reversed(self.runs):
            if any(other.start <= run.range.start and run.range.end <= other.end for other in newer):
                continue
            newer.append(run.range)
            time = run.least_timers.get(domain)
            if time is not None:
                least.append(time)
        return min(least, default=None)

    def plus(self, run: RunHandle | Iterable[RunHandle] | None) -> StateVersion:
        """Return the version with one or several newer runs; None changes nothing."""
        if run is None:
            return self
        return StateVersion((*self.runs, *((run,) if isinstance(run, RunHandle) else run)))


@dataclass(frozen=True)
class CatchUp:
    """The part of a version that a cache has not loaded.

    Attributes:
        after: Number of the oldest runs that the cache has completely.
        is_within: Whether the next run, or the runs that one compaction wrote together, contain both loaded and new
            changes: their keys must be loaded again from all runs.
        is_own_lost: Whether the run that the cache's own task wrote may not be part of the version, because its epoch
            failed: its keys must be loaded again as well.
    """

    after: int
    is_within: bool = False
    is_own_lost: bool = False


def catch_up(version: StateVersion, content: Lineage, before_own: Lineage | None) -> CatchUp | None:
    """Compare the content of a cache with a version.

    Args:
        version: The version to reach.
        content: Lineage of the cached content.
        before_own: Lineage before the run that the cache's own task wrote; None if that run is in a version, or
            unknown.

    Returns:
        None if the cache may have changes that the version does not have.
    """
    found = _find_step(version, content)
    if found is not None or before_own is None:
        return found
    found = _find_step(version, before_own)
    return None if found is None else CatchUp(found.after, found.is_within, True)


def _find_step(version: StateVersion, content: Lineage) -> CatchUp | None:
    for step in reversed(version.steps):
        if step.lineage.identity == content.identity:
            return CatchUp(step.end)
    # Oldest first: later steps contain the same leaves as well, but only the first is where the cached content ends.
    for step in version.steps:
        if content.identity in step.lineage.positions:
            return CatchUp(step.start, is_within=True)
    return None
