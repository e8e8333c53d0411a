"""State versions: ordered lists of runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.run.lineage import Lineage
from holdfast.state.run.run_file import RunHandle


@dataclass(frozen=True)
class VersionStep:
    """A point between the runs of a version.

    Attributes:
        end: How many runs are older.
        lineage: What they are made of.
        start: How many runs are older than the last of them, or than those that one compaction wrote with it.
    """

    end: int
    lineage: Lineage
    start: int


@dataclass(frozen=True)
class StateVersion:
    """The state of an operator, or of a range of its key groups, at the end of an epoch.

    Attributes:
        runs: Oldest first; what a newer one says wins.
    """

    runs: tuple[RunHandle, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))

    @property
    def run_ids(self) -> tuple[str, ...]:
        """What identifies the version: the ids of its runs in order."""
        return tuple(run.path for run in self.runs)

    @cached_property
    def steps(self) -> tuple[VersionStep, ...]:
        """What the version is made of up to each of its runs, oldest first; one more step than runs, the first empty.

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
        """What the version is made of."""
        return self.steps[-1].lineage

    def for_range(self, key_groups: KeyGroupRange) -> StateVersion:
        """Return the version without the runs that have nothing to do with a range of key groups."""
        return StateVersion(tuple(run for run in self.runs if run.range.intersection(key_groups)))

    def least_timer(self, domain: str) -> int | None:
        """Return a time before which no timer is due, None if there are none.

        It is that of the least timer, as each run says what its range had left when it was written; after a change of
        parallelism it may be that of a timer that has gone since.

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
