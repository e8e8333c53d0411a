"""The runs of a version as layers, of which any key group has to look through at most all.

Key groups whose runs have nothing to do with each other are compacted apart: a *component* is a set of runs whose
ranges hang together. Where the parallelism never changed it is the runs of one subtask. A *layer* of a component is a
stretch of runs, in order, of which no two have a key group in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import comb
from typing import Any, Final

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.run_file import Lineage, RunHandle
from holdfast.state.version import StateVersion


@dataclass(frozen=True)
class Layer:
    """Runs that follow each other in a component and overlap nowhere."""

    runs: tuple[RunHandle, ...]

    @cached_property
    def weight(self) -> int:
        """How many epochs the layer stands for, about."""
        return max(1 if run.compacted is None else run.compacted.count for run in self.runs)

    @cached_property
    def size(self) -> int:
        """In bytes."""
        return sum(run.size for run in self.runs)

    @cached_property
    def rows(self) -> int:
        """Of all states."""
        return sum(sum(run.rows.values()) for run in self.runs)


def components(runs: Sequence[RunHandle]) -> list[list[RunHandle]]:
    """Split runs, oldest first, into those whose key groups have nothing to do with each other; the order stays."""
    ranges: list[list[int]] = []
    for start, end in sorted({run.key_groups for run in runs}):
        if ranges and start <= ranges[-1][1]:
            ranges[-1][1] = max(ranges[-1][1], end)
        else:
            ranges.append([start, end])
    found: list[list[RunHandle]] = [[] for _ in ranges]
    of_start = {start: at for at, (first, last) in enumerate(ranges) for start in range(first, last + 1)}
    for run in runs:
        found[of_start[run.key_groups[0]]].append(run)
    return found


def layers(runs: Iterable[RunHandle]) -> list[Layer]:
    """Split the runs of a component, oldest first, into layers."""
    found: list[list[RunHandle]] = []
    for run in runs:
        if found and not any(run.range.intersection(other.range) for other in found[-1]):
            found[-1].append(run)
        else:
            found.append([run])
    return [Layer(tuple(layer)) for layer in found]


def common_lineage(layers: Sequence[Layer]) -> Lineage | None:
    """Return what some layers are made of, None if that is not the same for all of their key groups.

    It is the same if each layer covers the same range, by runs that have one lineage.
    """
    ranges = {_whole(layer) for layer in layers}
    if len(ranges) > 1 or None in ranges:
        return None
    for layer in layers:
        if any(run.lineage != layer.runs[0].lineage for run in layer.runs):
            return None
    return Lineage.of_all(layer.runs[0].lineage for layer in layers)


def _whole(layer: Layer) -> tuple[int, int] | None:
    """Return the range that the runs of a layer cover, None if they leave gaps."""
    bounds = sorted(run.key_groups for run in layer.runs)
    if any(end + 1 != start for (_, end), (start, _) in pairwise(bounds)):
        return None
    return bounds[0][0], bounds[-1][1]


def depth(runs: Sequence[RunHandle]) -> int:
    """Return the largest number of runs that a key group has to look through."""
    changes: dict[int, int] = {}
    for run in runs:
        start, end = run.key_groups
        changes[start] = changes.get(start, 0) + 1
        changes[end + 1] = changes.get(end + 1, 0) - 1
    deepest = current = 0
    for _, change in sorted(changes.items()):
        current += change
        deepest = max(deepest, current)
    return deepest


def cut_range(ranges: Iterable[KeyGroupRange], whole: KeyGroupRange) -> list[KeyGroupRange]:
    """Cut a range at every boundary of some other ranges."""
    starts = {whole.start}
    for one in ranges:
        starts.update(at for at in (one.start, one.end + 1) if whole.start < at <= whole.end)
    bounds = [*sorted(starts), whole.end + 1]
    return [KeyGroupRange(first, after - 1) for first, after in pairwise(bounds)]


# One compaction: what it reads, what it writes, and how its result takes the place of what it read.

LARGEST_PIECE: Final = 64 * 1024 * 1024
"""About how many bytes of input one output is made of: a merge holds one output in memory at a time."""


@dataclass(frozen=True)
class CompactionOutput:
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
    outputs: tuple[CompactionOutput, ...]
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
            tuple(CompactionOutput(path, KeyGroupRange(start, end)) for path, start, end in value["outputs"]),
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
    return [small for piece in cut_range(cuts, whole) for small in _divided(piece, size, whole)]


def _divided(piece: KeyGroupRange, size: int, whole: KeyGroupRange) -> list[KeyGroupRange]:
    """Cut a piece into parts of a bounded share of the bytes of the whole, assuming that keys are spread evenly."""
    share = size * piece.size // whole.size
    count = min(piece.size, max(1, -(-share // LARGEST_PIECE)))
    bounds = [piece.start + piece.size * at // count for at in range(count + 1)]
    return [KeyGroupRange(first, after - 1) for first, after in pairwise(bounds)]


def apply_compaction(
    version: StateVersion, inputs: Sequence[RunHandle], outputs: Sequence[RunHandle]
) -> StateVersion | None:
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


# Which layers to merge next: a pure decision.
#
# Reads want few layers, and writes want each row to be rewritten rarely. With at most k layers the least rewriting over
# n epochs is that of the binomial scheme: write n = C(d_k, k) + ... + C(d_1, 1) with d_k > ... > d_1, and let the
# layers stand for that many epochs each (Mathieu, Staelin, Young, Yousefi: "Bigtable merge compaction"). Ten thousand
# epochs in six layers are rewritten seven times at most; merging by powers of some size would need either twice as many
# layers or twice as much rewriting.
#
# Where keys are overwritten, the oldest layer stops growing. It is then left out of the scheme, and merged with those
# above it once they have become as large as it is, which costs two bytes for each new one at most.
#
# A merge occupies the layers that it reads until it ends, and a large one outlives many epochs. So large ones are of
# few layers: the small ones at the end of what the scheme has as one become one first, and the rest of the room is for
# the epochs that go on. That writes a seventh more at most, and epochs hardly ever wait.

_SPARE: Final = 1
"""How many layers below the limit merging aims at: as many epochs a merge may last before one has to wait."""
_LEAST: Final = 4
_OVERWRITTEN: Final = 0.5
_FEW: Final = (4, 5)
_SMALL: Final = 0.15


@dataclass(frozen=True)
class LayerRange:
    """Layers that are to become one: those from `start` up to, not including, `end`."""

    start: int
    end: int


def choose_merge(layers: Sequence[Layer], limit: int) -> LayerRange | None:
    """Return the layers of a component that are to be merged next, None if nothing is due.

    Args:
        layers: Oldest first.
        limit: How many layers there may be at most. Merging begins before that many are there, because epochs go on
            while it runs.
    """
    base = 1 if _is_overwritten(layers) else 0
    oldest = layers[: min(_FEW[-1], limit)]
    if base and len(oldest) >= min(_LEAST, limit) and sum(layer.size for layer in oldest[1:]) >= oldest[0].size:
        return LayerRange(0, len(oldest))
    if len(layers) < max(2, limit - 1):
        return None
    window = _binomial(layers, base, max(1, limit - _SPARE - base))
    return None if window is None else _end_first(layers, window)


def choose_merge_above(layers: Sequence[Layer], busy: int, limit: int) -> LayerRange | None:
    """Return what to merge while the oldest `busy` layers are being merged already."""
    above = layers[busy:]
    room = max(1, limit - _SPARE - busy)
    if len(above) <= room or len(layers) < limit - 1:
        return None
    window = _binomial(above, 0, room)
    return None if window is None else LayerRange(window.start + busy, window.end + busy)


def _end_first(layers: Sequence[Layer], window: LayerRange) -> LayerRange:
    """Return the end of a window instead of the whole if that is of many layers and its end is small."""
    small = _SMALL * _rows(layers[window.start : window.end])
    for start in (window.start + few - 1 for few in _FEW):
        if start + 1 < window.end and _rows(layers[start : window.end]) <= small:
            return LayerRange(start, window.end)
    return window


def _rows(layers: Sequence[Layer]) -> int:
    return sum(layer.rows for layer in layers)


def _is_overwritten(layers: Sequence[Layer]) -> bool:
    """Whether the oldest layer is far smaller than what was written for it, judged by the layers of fewest epochs."""
    if len(layers) < 2:
        return False
    least = min(layer.weight for layer in layers[1:])
    fresh = [layer for layer in layers[1:] if layer.weight == least]
    epochs = layers[0].weight / (least * len(fresh))
    rows, size = _rows(fresh), sum(layer.size for layer in fresh)
    return layers[0].rows < _OVERWRITTEN * epochs * rows and layers[0].size < _OVERWRITTEN * epochs * size


def _binomial(layers: Sequence[Layer], base: int, count: int) -> LayerRange | None:
    """Return the oldest layers, from `base` on, that the scheme with `count` layers has as one.

    Layers that the scheme does not know, after a change of parallelism or of the limit, stay as they are until it has
    them within one; if nothing else helps, the two newest are merged.
    """
    starts = [0, *accumulate(layer.weight for layer in layers[base:])]
    first = 0
    for wanted in binomial_weights(starts[-1], count):
        inside = [at for at in range(len(starts) - 1) if first <= starts[at] and starts[at + 1] <= first + wanted]
        if len(inside) > 1:
            return LayerRange(base + inside[0], base + inside[-1] + 1)
        first += wanted
    return LayerRange(len(layers) - 2, len(layers)) if len(starts) - 1 > max(2, count) else None


def binomial_weights(total: int, count: int) -> list[int]:
    """Return how many epochs each of at most `count` layers stands for, oldest first."""
    weights = []
    for k in range(count, 0, -1):
        d = k - 1
        while comb(d + 1, k) <= total:
            d += 1
        if (weight := comb(d, k)) > 0:
            weights.append(weight)
            total -= weight
    return weights
