"""State versions: ordered lists of runs."""

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


# How a cache of an older version is brought up to a newer one, or that it cannot be.
#
# A cache has the content of some list of leaves (see `lineage`), and the newest of them may be one that its task wrote
# in an epoch that failed afterwards, so that no version ever has it.


@dataclass(frozen=True)
class CatchUp:
    """What a cache has missed.

    Attributes:
        after: How many of the version's oldest runs have nothing new.
        is_within: Whether the run after these, or all that one compaction wrote together, has some of what the cache
            has and some that it has not: what is known of the keys in it has to be read from all runs again.
        is_own_lost: Whether the run that the cache's own task wrote is not known to be part of the version: what is
            known of the keys in it has to be read again as well.
    """

    after: int
    is_within: bool = False
    is_own_lost: bool = False


def catch_up(version: StateVersion, content: Lineage, before_own: Lineage | None) -> CatchUp | None:
    """Find out what a cache has missed.

    Args:
        version: What it is to have.
        content: What it has.
        before_own: What it had before its own task wrote the newest run; None if that run is in a version, or not
            known.

    Returns:
        None if the cache may have something that the version has not.
    """
    found = _find(version, content)
    if found is not None or before_own is None:
        return found
    found = _find(version, before_own)
    return None if found is None else CatchUp(found.after, found.is_within, True)


def _find(version: StateVersion, content: Lineage) -> CatchUp | None:
    for step in reversed(version.steps):
        if step.lineage.identity == content.identity:
            return CatchUp(step.end)
    # Oldest first: each later step has the same point among its leaves, but only the first one is where it lies.
    for step in version.steps:
        if content.identity in step.lineage.positions:
            return CatchUp(step.start, is_within=True)
    return None
