"""State versions: ordered lists of runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.run import RunHandle


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

    def for_range(self, key_groups: KeyGroupRange) -> StateVersion:
        """Return the version without the runs that have nothing to do with a range of key groups."""
        return StateVersion(tuple(run for run in self.runs if run.range.intersection(key_groups)))

    def plus(self, run: RunHandle | Iterable[RunHandle] | None) -> StateVersion:
        """Return the version with one or several newer runs; None changes nothing."""
        if run is None:
            return self
        return StateVersion((*self.runs, *((run,) if isinstance(run, RunHandle) else run)))
