"""How a cache of an older version is brought up to a newer one, or that it cannot be.

A cache has the content of some list of leaves (see `lineage`), and the newest of them may be one that its task wrote
in an epoch that failed afterwards, so that no version ever has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.state.run.lineage import Lineage
from holdfast.state.run.version import StateVersion


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
