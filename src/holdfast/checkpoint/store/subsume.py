"""Which completed checkpoints a newer one replaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

C = TypeVar("C")


def subsume(
    checkpoints: Sequence[C],
    retained: int,
    is_savepoint: Callable[[C], bool],
    is_synchronous: Callable[[C], bool] = lambda checkpoint: False,
) -> tuple[list[C], list[C]]:
    """Split the checkpoints of a store into those that stay and those that go.

    While there are too many, the oldest go; but never the newest one, and never the newest one that is not a savepoint,
    because the job could not recover without it, unless the newest is the savepoint with which the job stops. A
    savepoint may always go: forgetting it does not delete it.

    Args:
        checkpoints: Oldest first.
        retained: How many stay, at least 1.
        is_savepoint: Whether one belongs to the user.
        is_synchronous: Whether one is the savepoint with which a job stops.

    Returns:
        Those that stay and those that go, each oldest first.
    """
    if retained < 1:
        raise ValueError(f"At least one checkpoint must be retained, not {retained!r}.")
    if not checkpoints:
        return [], []
    newest = checkpoints[-1]
    needed = next((checkpoint for checkpoint in reversed(checkpoints) if not is_savepoint(checkpoint)), None)
    stay, go = list(checkpoints), []
    for checkpoint in checkpoints[:-1]:
        if len(stay) <= retained:
            break
        if is_savepoint(checkpoint) or is_synchronous(newest) or checkpoint is not needed:
            stay.remove(checkpoint)
            go.append(checkpoint)
    return stay, go
