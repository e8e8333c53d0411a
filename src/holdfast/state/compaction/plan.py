"""One compaction: what it reads, what it writes, and how its result takes the place of what it read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.compaction.layer import Layer, pieces
from holdfast.state.run.run_file import RunHandle
from holdfast.state.run.version import StateVersion

LARGEST_PIECE: Final = 64 * 1024 * 1024
"""About how many bytes of input one output is made of: a merge holds one output in memory at a time."""


@dataclass(frozen=True)
class Output:
    """A run to be written.

    Attributes:
        path: Relative to the job directory.
        key_groups: The part of the inputs that it has.
    """

    path: str
    key_groups: KeyGroupRange


@dataclass(frozen=True)
class CompactionPlan:
    """A compaction.

    Attributes:
        root: The job directory.
        inputs: Runs, oldest first.
        outputs: What they become.
        is_oldest: Whether nothing older has any of their key groups.
        now: Processing time at which it was planned, in milliseconds; None if it may drop nothing that has expired.
        token: Fencing token of the leader.
        newer: Runs with some of their key groups that are newer, oldest first: they say how long state lives now.
    """

    root: str
    inputs: tuple[RunHandle, ...]
    outputs: tuple[Output, ...]
    is_oldest: bool
    now: int | None
    token: int
    newer: tuple[RunHandle, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return {
            "root": self.root,
            "inputs": [run.to_json() for run in self.inputs],
            "outputs": [[output.path, output.key_groups.start, output.key_groups.end] for output in self.outputs],
            "is_oldest": self.is_oldest,
            "now": self.now,
            "token": self.token,
            "newer": [run.to_json() for run in self.newer],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CompactionPlan:
        """Read a plan."""
        return cls(
            value["root"],
            tuple(RunHandle.from_json(run) for run in value["inputs"]),
            tuple(Output(path, KeyGroupRange(start, end)) for path, start, end in value["outputs"]),
            value["is_oldest"],
            value["now"],
            value["token"],
            tuple(RunHandle.from_json(run) for run in value["newer"]),
        )


def output_ranges(layers: Sequence[Layer], is_oldest: bool, subtasks: Sequence[KeyGroupRange]) -> list[KeyGroupRange]:
    """Return the key groups of each run that some layers are to become.

    Args:
        layers: The layers, oldest first.
        is_oldest: Whether nothing older has any of their key groups.
        subtasks: The key groups of each subtask that runs now. Runs that end where subtasks end keep components small,
            so that one that reached over several subtasks, after a change of parallelism, falls apart again.
    """
    runs = [run for layer in layers for run in layer.runs]
    whole = KeyGroupRange(min(run.key_groups[0] for run in runs), max(run.key_groups[1] for run in runs))
    cuts = list(subtasks)
    if not is_oldest:
        # Up to which time timers have fired is said of a run as a whole, and may differ between the inputs.
        cuts += [run.range for run in runs]
    size = sum(layer.size for layer in layers)
    return [small for piece in pieces(cuts, whole) for small in _divided(piece, size, whole)]


def _divided(piece: KeyGroupRange, size: int, whole: KeyGroupRange) -> list[KeyGroupRange]:
    """Cut a piece into parts of a bounded share of the bytes of the whole, assuming that keys are spread evenly."""
    share = size * piece.size // whole.size
    count = min(piece.size, max(1, -(-share // LARGEST_PIECE)))
    bounds = [piece.start + piece.size * at // count for at in range(count + 1)]
    return [KeyGroupRange(first, after - 1) for first, after in pairwise(bounds)]


def swap(version: StateVersion, inputs: Sequence[RunHandle], outputs: Sequence[RunHandle]) -> StateVersion | None:
    """Return a version with the result of a compaction in place of what it was made of.

    Returns:
        None if the version does not have the inputs any more as they were: all there, in order, and nothing between
        them that is about any of their key groups.
    """
    at = {run.path: position for position, run in enumerate(version.runs)}
    positions = [at.get(run.path, -1) for run in inputs]
    if not positions or min(positions) < 0 or positions != sorted(positions):
        return None
    gone = set(positions)
    first, last = positions[0], positions[-1]
    between = [version.runs[position] for position in range(first, last) if position not in gone]
    if any(run.range.intersection(other.range) for run in between for other in inputs):
        return None
    kept = [run for position, run in enumerate(version.runs[:last]) if position not in gone]
    return StateVersion((*kept, *outputs, *version.runs[last + 1 :]))
