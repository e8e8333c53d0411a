"""What a run was made of, in a form that caches can compare.

A run that an epoch wrote is a *leaf*. A compacted run stands for the leaves that it was merged from, in order. Lists
of leaves grow without bound, so a lineage is the number of leaves, a digest of their ids that composes (the digest of
two lists put together follows from those of both), and the ids of the newest few. Two sequences of runs whose digests
agree up to some leaf have the same content up to there, however they were compacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import xxhash

from holdfast.state.run import run_fields

RECENT: Final = 16
_MODULUS: Final = 2**127 - 1
_BASE: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835 % _MODULUS


@dataclass(frozen=True)
class Lineage:
    """The leaves of a run, or of several runs in order.

    Attributes:
        count: How many leaves.
        digest: Of their ids.
        recent: Digests of the ids of the newest of them, oldest first; of all if there are at most `RECENT`. Not the
            ids: what a checkpoint's document names is kept, and a leaf that was compacted is to go.
    """

    count: int = 0
    digest: int = 0
    recent: tuple[int, ...] = ()

    @classmethod
    def of_leaf(cls, run_id: str) -> Lineage:
        """Return the lineage of a run that an epoch wrote."""
        leaf = xxhash.xxh3_128_intdigest(run_id.encode()) % _MODULUS
        return cls(1, leaf, (leaf,))

    @classmethod
    def unknown(cls, count: int, run_id: str) -> Lineage:
        """Return the lineage of a run that stands for some leaves, but not for the same ones in all its key groups."""
        return cls(count, xxhash.xxh3_128_intdigest(b"unknown " + run_id.encode()) % _MODULUS)

    @classmethod
    def of_all(cls, parts: Iterable[Lineage]) -> Lineage:
        """Return the lineage of several runs, oldest first."""
        whole = cls()
        for part in parts:
            whole = whole + part
        return whole

    def __add__(self, newer: Lineage) -> Lineage:
        digest = (self.digest * pow(_BASE, newer.count, _MODULUS) + newer.digest) % _MODULUS
        # What this part has may only stand before what the newer one has if nothing is missing in between.
        before = self.recent if len(newer.recent) == newer.count else ()
        return Lineage(self.count + newer.count, digest, (*before, *newer.recent)[-RECENT:])

    @property
    def identity(self) -> tuple[int, int]:
        """What is equal for equal lists of leaves."""
        return self.count, self.digest

    @cached_property
    def positions(self) -> dict[tuple[int, int], int]:
        """The identity of the lineage up to each point between its recent leaves, and how many leaves follow there."""
        found = {self.identity: 0}
        digest = self.digest
        for behind, leaf in enumerate(reversed(self.recent), start=1):
            digest = (digest - leaf) * _INVERSE % _MODULUS
            found[self.count - behind, digest] = behind
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the lineage as JSON."""
        return {"count": self.count, "digest": _text(self.digest), "recent": [_text(leaf) for leaf in self.recent]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Lineage:
        """Read a lineage.

        Raises:
            Any of `MALFORMED`: It is none.
        """
        recent = tuple(int(leaf, 16) for leaf in value["recent"])
        count = run_fields.whole(value, "count")
        run_fields.require(len(recent) <= min(count, RECENT), "recent", recent)
        return cls(count, int(value["digest"], 16), recent)


def _text(digest: int) -> str:
    return f"{digest:032x}"


_INVERSE: Final = pow(_BASE, -1, _MODULUS)
