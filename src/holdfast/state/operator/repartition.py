"""Operator state for another parallelism: split lists are dealt out, unions and broadcast maps are given to all.

Pure: chunks are cut and handed on, nothing is read. Subtasks that have asked for a list and others that have not may
have left it in several forms; then each chunk is handed on in its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.errors import StateError
from holdfast.state.operator.operator_snapshot import Mode, OperatorSnapshot, SnapshotChunk, StoredState

Snapshots = Sequence[OperatorSnapshot | None]
_Parts = dict[str, StoredState]


class RoundRobinOperatorStateRepartitioner:
    """Deals the operator state of an operator out to its subtasks after a restore or a rescale."""

    def repartition_state(
        self, previous: Snapshots, old_parallelism: int, new_parallelism: int
    ) -> list[OperatorSnapshot | None]:
        """Return the state of each new subtask, None for one without any.

        With the same parallelism each subtask gets what it had, except that unions are given to all again, and
        broadcast states that only some subtasks have as well. Otherwise the elements of split lists are dealt out in
        their order, evenly over all lists together: the numbers of two subtasks differ by one at most.

        Args:
            previous: The state of each old subtask.
            old_parallelism: Their number.
            new_parallelism: Number of the new subtasks, at least 1.

        Raises:
            StateError: The numbers do not fit.
        """
        if new_parallelism < 1:
            raise StateError(f"Operator state goes to at least one subtask, not to {new_parallelism!r}.")
        if len(previous) != old_parallelism:
            raise StateError(
                f"Operator state of {old_parallelism} subtasks is to be dealt out, and there is that of "
                f"{len(previous)}."
            )
        grouped = _by_name(previous)
        parts: list[_Parts] = [{} for _ in range(new_parallelism)]
        start = 0
        for name, owners in sorted(grouped.items()):
            mode = next(iter(owners.values())).mode
            if mode is Mode.UNION:
                _give_union(name, owners, parts)
            elif mode is Mode.BROADCAST:
                _give_broadcast(name, owners, parts)
            elif old_parallelism == new_parallelism:
                for subtask, state in owners.items():
                    parts[subtask][name] = state
            else:
                start = _deal_out(name, owners, parts, start)
        return [OperatorSnapshot(states) if states else None for states in parts]


def _by_name(previous: Snapshots) -> dict[str, dict[int, StoredState]]:
    """Each state's part by old subtask."""
    grouped: dict[str, dict[int, StoredState]] = {}
    for subtask, snapshot in enumerate(previous):
        for name, state in (snapshot.states if snapshot else {}).items():
            grouped.setdefault(name, {})[subtask] = state
    return grouped


def _typed(state: StoredState) -> list[SnapshotChunk]:
    """The chunks of a list, each with its type, whatever that of the state is."""
    return [replace(chunk, type=state.type_of(chunk)) for chunk in state.chunks if chunk.count]


def _merged(states: Sequence[StoredState], chunks: Sequence[SnapshotChunk]) -> StoredState:
    """A list of chunks of some lists; it is of the type of its last chunk, and others keep their own."""
    last = states[-1]
    kind = chunks[-1].type if chunks else last.description["type"]
    own = tuple(replace(chunk, type=None) if chunk.type == kind else chunk for chunk in chunks)
    return replace(last, description={**last.description, "type": kind}, chunks=own)


def _give_union(name: str, owners: dict[int, StoredState], parts: list[_Parts]) -> None:
    """Gives everybody all that there is. What nobody has asked for since the last time counts once."""
    copies = [state for state in owners.values() if state.is_handed_out]
    # What was written since is the newest, so it comes last.
    states = [*copies[:1], *(state for state in owners.values() if not state.is_handed_out)]
    everything = replace(_merged(states, [chunk for state in states for chunk in _typed(state)]), is_handed_out=True)
    for part in parts:
        part[name] = everything


def _give_broadcast(name: str, owners: dict[int, StoredState], parts: list[_Parts]) -> None:
    copies = list(owners.values())
    for subtask, part in enumerate(parts):
        part[name] = copies[subtask % len(copies)]


def _deal_out(name: str, owners: dict[int, StoredState], parts: list[_Parts], start: int) -> int:
    """Deals one list out, the first surplus element to the subtask `start`; returns who is next for another list."""
    states = list(owners.values())
    waiting = [chunk for state in states for chunk in _typed(state)]
    each, surplus = divmod(sum(chunk.count for chunk in waiting), len(parts))
    for position in range(len(parts)):
        wanted = each + (position < surplus)
        taken: list[SnapshotChunk] = []
        while wanted:
            head = waiting[0]
            count = min(wanted, head.count)
            taken.append(head.part(0, count))
            wanted -= count
            waiting[:1] = [] if count == head.count else [head.part(count, head.count - count)]
        parts[(start + position) % len(parts)][name] = _merged(states, taken)
    return (start + surplus) % len(parts)
