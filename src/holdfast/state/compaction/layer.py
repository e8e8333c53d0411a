"""The runs of a version as layers, of which any key group has to look through at most all.

Key groups whose runs have nothing to do with each other are compacted apart: a *component* is a set of runs whose
ranges hang together. Where the parallelism never changed it is the runs of one subtask. A *layer* of a component is a
stretch of runs, in order, of which no two have a key group in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.run.lineage import Lineage
from holdfast.state.run.run_file import RunHandle


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


def pieces(ranges: Iterable[KeyGroupRange], whole: KeyGroupRange) -> list[KeyGroupRange]:
    """Cut a range at every boundary of some other ranges."""
    starts = {whole.start}
    for one in ranges:
        starts.update(at for at in (one.start, one.end + 1) if whole.start < at <= whole.end)
    bounds = [*sorted(starts), whole.end + 1]
    return [KeyGroupRange(first, after - 1) for first, after in pairwise(bounds)]
