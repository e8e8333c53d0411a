"""Plans of compactions: which runs to merge, into which outputs, and how the result replaces its inputs in a version.

Runs of unrelated key groups are compacted separately: a *component* is a set of runs whose ranges overlap, directly or
through others. If the parallelism never changed, it is the runs of one subtask. A *layer* of a component is a sequence
of runs without a common key group. So a lookup reads at most one run per layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import comb
from typing import Any, Final

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.run_file import Lineage, RunHandle
from holdfast.state.version import StateVersion


@dataclass(frozen=True)
class Layer:
    """Consecutive runs of a component that do not overlap."""

    runs: tuple[RunHandle, ...]

    @cached_property
    def weight(self) -> int:
        """Approximate number of epochs in the layer."""
        return max(1 if run.compacted is None else run.compacted.count for run in self.runs)

    @cached_property
    def size(self) -> int:
        """Size in bytes."""
        return sum(run.size for run in self.runs)

    @cached_property
    def rows(self) -> int:
        """Number of rows of all states."""
        return sum(sum(run.rows.values()) for run in self.runs)

    def expected_next(self) -> Layer:
        """Return a layer like the one that the next epoch adds, estimated from this one."""
        return Layer(
            tuple(
                replace(
                    run,
                    size=run.size // self.weight,
                    rows={name: rows // self.weight for name, rows in run.rows.items()},
                    compacted=None,
                )
                for run in self.runs
            )
        )


def components(runs: Sequence[RunHandle]) -> list[list[RunHandle]]:
    """Split runs, oldest first, into components; the order is kept."""
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
    """Return the lineage of some layers, None if their key groups have different ones.

    All key groups have the same one if each layer covers the same range with runs of one lineage.
    """
    ranges = {_covered_range(layer) for layer in layers}
    if len(ranges) > 1 or None in ranges:
        return None
    for layer in layers:
        if any(run.lineage != layer.runs[0].lineage for run in layer.runs):
            return None
    return Lineage.of_all(layer.runs[0].lineage for layer in layers)


def _covered_range(layer: Layer) -> tuple[int, int] | None:
    """Return the range that the runs of a layer cover, None if there are gaps."""
    bounds = sorted(run.key_groups for run in layer.runs)
    if any(end + 1 != start for (_, end), (start, _) in pairwise(bounds)):
        return None
    return bounds[0][0], bounds[-1][1]


def depth(runs: Sequence[RunHandle]) -> int:
    """Return the largest number of runs that a lookup of a key reads."""
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
    """Cut a range at the boundaries of other ranges."""
    starts = {whole.start}
    for one in ranges:
        starts.update(at for at in (one.start, one.end + 1) if whole.start < at <= whole.end)
    bounds = [*sorted(starts), whole.end + 1]
    return [KeyGroupRange(first, after - 1) for first, after in pairwise(bounds)]


LARGEST_PIECE: Final = 64 * 1024 * 1024
"""Approximate input size of one output in bytes; a merge keeps one output in memory at a time."""


@dataclass(frozen=True)
class CompactionOutput:
    """A run to be written.

    Attributes:
        path: Path relative to the job directory.
        key_groups: The part of the inputs that it contains.
    """

    path: str
    key_groups: KeyGroupRange


@dataclass(frozen=True)
class CompactionPlan:
    """A compaction.

    Attributes:
        root: The job directory.
        inputs: Runs to merge, oldest first.
        outputs: Runs to write.
        is_oldest: Whether no older run has any of their key groups.
        now: Processing time of the plan in milliseconds; None if expired state must be kept.
        token: Fencing token of the leader.
        newer: Newer runs with some of their key groups, oldest first; they determine the time to live.
        is_urgent: Whether there are more runs than there may be, so that it must not run at low priority.
    """

    root: str
    inputs: tuple[RunHandle, ...]
    outputs: tuple[CompactionOutput, ...]
    is_oldest: bool
    now: int | None
    token: int
    newer: tuple[RunHandle, ...] = ()
    is_urgent: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "root": self.root,
            "inputs": [run.to_json() for run in self.inputs],
            "outputs": [[output.path, output.key_groups.start, output.key_groups.end] for output in self.outputs],
            "is_oldest": self.is_oldest,
            "now": self.now,
            "token": self.token,
            "newer": [run.to_json() for run in self.newer],
            "is_urgent": self.is_urgent,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CompactionPlan:
        return cls(
            value["root"],
            tuple(RunHandle.from_json(run) for run in value["inputs"]),
            tuple(CompactionOutput(path, KeyGroupRange(start, end)) for path, start, end in value["outputs"]),
            value["is_oldest"],
            value["now"],
            value["token"],
            tuple(RunHandle.from_json(run) for run in value["newer"]),
            value["is_urgent"],
        )


@dataclass(frozen=True)
class TaskMerge:
    """A merge that a task carries out when it writes its run, so that one file is written instead of two.

    Attributes:
        count: Number of the newest runs of the subtask that the new run replaces.
        now: Processing time of the plan in milliseconds; None if expired state must be kept.
    """

    count: int
    now: int | None

    def plan(self, root: str, version: StateVersion, new: RunHandle, path: str, token: int) -> CompactionPlan:
        """Return the compaction of the newest runs of a subtask's version and a new run."""
        inputs = (*version.runs[-self.count :], new)
        output = CompactionOutput(path, new.range)
        return CompactionPlan(root, inputs, (output,), self.count == len(version.runs), self.now, token)


TaskMerges = Mapping[str, Mapping[int, TaskMerge]]
"""Merges by uid and subtask."""


def apply_task_merge(version: StateVersion, count: int, run: RunHandle) -> StateVersion:
    """Return a version with a run in place of the newest runs of the same range.

    Raises:
        ValueError: There are not so many.
    """
    inputs = version.for_range(run.range).runs[-count:]
    merged = apply_compaction(version, inputs, [run]) if len(inputs) == count else None
    if merged is None:
        raise ValueError(f"run {run.path!r} cannot replace {count} runs of {version.run_ids!r:.1000}")
    return merged


def output_ranges(layers: Sequence[Layer], is_oldest: bool, subtasks: Sequence[KeyGroupRange]) -> list[KeyGroupRange]:
    """Return the key groups of each output of a merge.

    Args:
        layers: The layers, oldest first.
        is_oldest: Whether no older run has any of their key groups.
        subtasks: The key groups of each current subtask. Outputs end where subtasks end, so that a component that spans
            several subtasks after a change of parallelism is split again.
    """
    runs = [run for layer in layers for run in layer.runs]
    whole = KeyGroupRange(min(run.key_groups[0] for run in runs), max(run.key_groups[1] for run in runs))
    cuts = list(subtasks)
    if not is_oldest:
        # The time up to which timers have fired is a property of a whole run, and may differ between inputs.
        cuts += [run.range for run in runs]
    size = sum(layer.size for layer in layers)
    return [small for piece in cut_range(cuts, whole) for small in _split_by_size(piece, size, whole)]


def _split_by_size(piece: KeyGroupRange, size: int, whole: KeyGroupRange) -> list[KeyGroupRange]:
    """Split a range into parts of bounded size, assuming that keys are uniformly distributed."""
    share = size * piece.size // whole.size
    count = min(piece.size, max(1, -(-share // LARGEST_PIECE)))
    bounds = [piece.start + piece.size * at // count for at in range(count + 1)]
    return [KeyGroupRange(first, after - 1) for first, after in pairwise(bounds)]


def apply_compaction(
    version: StateVersion, inputs: Sequence[RunHandle], outputs: Sequence[RunHandle]
) -> StateVersion | None:
    """Return a version with the outputs of a compaction in place of its inputs.

    Returns:
        None if the version has changed: an input is missing or out of order, or a run between them overlaps one.
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


# Which layers to merge next. Reads need few layers; writes need each row to be rewritten rarely. With at most k layers
# the binomial scheme rewrites least over n epochs: write n = C(d_k, k) + ... + C(d_1, 1) with d_k > ... > d_1, and let
# each layer have that many epochs (Mathieu, Staelin, Young, Yousefi: "Bigtable merge compaction"). Ten thousand epochs
# in six layers are rewritten at most seven times; merging by powers of a size would need either twice as many layers or
# twice as much rewriting.
#
# If keys are overwritten, the oldest layer stops growing. It is then left out of the scheme, and merged with the layers
# above once these are as large as it is, which costs at most two bytes per new byte.
#
# A merge blocks its layers until it ends, and a large one takes many epochs. So large merges have few layers: the small
# layers at the end of a window are merged first, which leaves room for the epochs meanwhile. That writes at most a
# seventh more, and the limit is hardly ever exceeded.

_SPARE: Final = 1
"""Layers to stay below the limit: the number of epochs that a merge may take before there are more."""
_LEAST: Final = 4
_OVERWRITTEN: Final = 0.5
_FEW: Final = (4, 5)
_SMALL: Final = 0.15


@dataclass(frozen=True)
class LayerRange:
    """Layers to merge: those from `start` to before `end`."""

    start: int
    end: int


def choose_merge(layers: Sequence[Layer], limit: int) -> LayerRange | None:
    """Return the layers of a component to merge next, None if nothing is due.

    Args:
        layers: Oldest first.
        limit: Maximum number of layers. Merging starts earlier, because epochs continue meanwhile.
    """
    base = 1 if _has_overwrites(layers) else 0
    oldest = layers[: min(_FEW[-1], limit)]
    if base and len(oldest) >= min(_LEAST, limit) and sum(layer.size for layer in oldest[1:]) >= oldest[0].size:
        return LayerRange(0, len(oldest))
    if len(layers) < max(2, limit - 1):
        return None
    window = _binomial(layers, base, max(1, limit - _SPARE - base))
    return None if window is None else _small_end_first(layers, window)


def choose_merge_above(layers: Sequence[Layer], busy: int, limit: int) -> LayerRange | None:
    """Return the layers to merge while the oldest `busy` layers are being merged."""
    above = layers[busy:]
    room = max(1, limit - _SPARE - busy)
    if len(above) <= room or len(layers) < limit - 1:
        return None
    window = _binomial(above, 0, room)
    return None if window is None else LayerRange(window.start + busy, window.end + busy)


def _small_end_first(layers: Sequence[Layer], window: LayerRange) -> LayerRange:
    """Return the end of a window instead of the window if it has many layers and its end is small."""
    small = _SMALL * _rows(layers[window.start : window.end])
    for start in (window.start + few - 1 for few in _FEW):
        if start + 1 < window.end and _rows(layers[start : window.end]) <= small:
            return LayerRange(start, window.end)
    return window


def _rows(layers: Sequence[Layer]) -> int:
    return sum(layer.rows for layer in layers)


def _has_overwrites(layers: Sequence[Layer]) -> bool:
    """Return whether the oldest layer is far smaller than the sum of its epochs, estimated from the newest layers."""
    if len(layers) < 2:
        return False
    least = min(layer.weight for layer in layers[1:])
    fresh = [layer for layer in layers[1:] if layer.weight == least]
    epochs = layers[0].weight / (least * len(fresh))
    rows, size = _rows(fresh), sum(layer.size for layer in fresh)
    return layers[0].rows < _OVERWRITTEN * epochs * rows and layers[0].size < _OVERWRITTEN * epochs * size


def _binomial(layers: Sequence[Layer], base: int, count: int) -> LayerRange | None:
    """Return the oldest layers, from `base` on, that the scheme with `count` layers merges into one.

    Layers that do not fit the scheme, after a change of parallelism or limit, stay until it has them within one layer;
    if nothing else helps, the two newest are merged.
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
    """Return the number of epochs in each of at most `count` layers, oldest first."""
    weights = []
    for k in range(count, 0, -1):
        d = k - 1
        while comb(d + 1, k) <= total:
            d += 1
        if (weight := comb(d, k)) > 0:
            weights.append(weight)
            total -= weight
    return weights
