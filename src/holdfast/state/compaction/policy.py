"""Which layers to merge next: a pure decision.

Reads want few layers, and writes want each row to be rewritten rarely. With at most k layers the least rewriting over
n epochs is that of the binomial scheme: write n = C(d_k, k) + ... + C(d_1, 1) with d_k > ... > d_1, and let the layers
stand for that many epochs each (Mathieu, Staelin, Young, Yousefi: "Bigtable merge compaction"). Ten thousand epochs in
six layers are rewritten seven times at most; merging by powers of some size would need either twice as many layers or
twice as much rewriting.

Where keys are overwritten, the oldest layer stops growing. It is then left out of the scheme, and merged with those
above it once they have become as large as it is, which costs two bytes for each new one at most.

A merge occupies the layers that it reads until it ends, and a large one outlives many epochs. So large ones are of few
layers: the small ones at the end of what the scheme has as one become one first, and the rest of the room is for the
epochs that go on. That writes a seventh more at most, and epochs hardly ever wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb
from typing import Final

from holdfast.state.compaction.layer import Layer

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


def choose(layers: Sequence[Layer], limit: int) -> LayerRange | None:
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


def choose_above(layers: Sequence[Layer], busy: int, limit: int) -> LayerRange | None:
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
