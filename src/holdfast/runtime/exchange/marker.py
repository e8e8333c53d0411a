"""The marker: what each task of the next stage gets of a task; its length does not depend on how many tasks there are.

A marker says who has written the rows before it: stage, partition and attempt, and the event time that the task knows.
What the task *did* (its content, see `barrier_row`) follows the marker in one row only, in that of its carrier, and the
carrier nests it unread in its own content. So each content reaches the driver once, and a task says which attempts it
has read by a digest of 128 bits: the driver has the contents, makes the same digest of them, and compares.

    marker     = head, then for each clock of the job whether a timestamp was observed, then the timestamps
    head       = "m" (1 byte), 0 (1 byte), stage (2), partition (4), attempt (16): 24 bytes, big endian
    digest     = BLAKE2b, 16 bytes, of the sorted heads; a head that came twice is in it twice
    carrier    = the task whose partition is that of the sender, modulo the number of tasks
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

_HEAD: Final = struct.Struct(">cxHI16s")
_KIND: Final = b"m"
_LONGEST_ATTEMPT: Final = 16

NOTHING_READ: Final = ""
"""The digest of a task that has read no markers: it begins an epoch job."""


def head(stage: int, partition: int, attempt: str) -> bytes:
    """Who wrote the rows before a marker.

    Raises:
        ValueError or struct.error: These are not what a task can be called.
    """
    name = attempt.encode("ascii")
    if not 0 < len(name) <= _LONGEST_ATTEMPT or b"\0" in name:
        raise ValueError(f"an attempt has 1 to {_LONGEST_ATTEMPT} letters, not {attempt!r:.80}")
    return _HEAD.pack(_KIND, stage, partition, name)


def digest_of(heads: Iterable[bytes]) -> str:
    """What stands for having read just these markers, each as often as it is there; in any order."""
    found = sorted(heads)
    return hashlib.blake2b(b"".join(found), digest_size=16).hexdigest() if found else NOTHING_READ


class MarkerFormat:
    """Markers of one job.

    Args:
        clocks: The steps that assign timestamps.
    """

    def __init__(self, clocks: Iterable[str]) -> None:
        self.clocks = tuple(sorted(clocks))
        times = len(self.clocks)
        self._type = np.dtype([("head", f"V{_HEAD.size}"), ("known", "u1", (times,)), ("observed", ">i8", (times,))])

    @property
    def length(self) -> int:
        """Of each marker, in bytes."""
        return self._type.itemsize

    def marker(self, own_head: bytes, observed: Mapping[str, int]) -> bytes:
        """The marker of a task that knows these greatest timestamps by clock."""
        known = bytes(clock in observed for clock in self.clocks)
        return own_head + known + struct.pack(f">{len(known)}q", *(observed.get(clock, 0) for clock in self.clocks))

    def rows(self, marker: bytes, content: bytes, partition: int, tasks: int) -> list[bytes]:
        """The control row for each task of the next stage; its carrier's has the content."""
        rows = [marker] * tasks
        rows[partition % tasks] = marker + content
        return rows

    def observed(self, markers: Sequence[bytes]) -> dict[str, int]:
        """The greatest timestamp by clock, of those that any of the markers knows."""
        if not self.clocks or not markers:
            return {}
        records = np.frombuffer(b"".join(markers), self._type)
        known = records["known"] != 0
        times = np.where(known, records["observed"], np.iinfo(np.int64).min).max(axis=0)
        return {clock: int(times[at]) for at, clock in enumerate(self.clocks) if known[:, at].any()}


class MarkerReader:
    """Collects the control rows that arrive in one task's input.

    Args:
        form: The markers of the job.
    """

    def __init__(self, form: MarkerFormat) -> None:
        self._form = form
        self._markers: list[bytes] = []
        self._contents: list[tuple[bytes, bytes]] = []

    def take(self, row: bytes) -> None:
        """Takes one row. One that comes twice counts twice: then the rows before it have come twice as well.

        Raises:
            ValueError: It is no marker of this job.
        """
        length = self._form.length
        if len(row) < length or not row.startswith(_KIND):
            raise ValueError(f"a control row of {len(row)} bytes is no marker: {row[:32]!r}")
        marker = row[:length]
        self._markers.append(marker)
        if len(row) > length:
            self._contents.append((marker[: _HEAD.size], row[length:]))

    def heads(self) -> list[bytes]:
        """Who wrote what was read, sorted."""
        return sorted(marker[: _HEAD.size] for marker in self._markers)

    def digest(self) -> str:
        """What stands for all that was read."""
        return digest_of(self.heads())

    def observed(self) -> dict[str, int]:
        """The greatest timestamp by clock that the tasks above have assigned or read of."""
        return self._form.observed(self._markers)

    def contents(self) -> tuple[bytes, ...]:
        """What came to this task as the carrier, as it came, by sender."""
        return tuple(content for _, content in sorted(self._contents))

    def listed(self) -> tuple[tuple[int, str], ...]:
        """Partition and attempt of all that was read, to tell people."""
        parts = (_HEAD.unpack(one) for one in self.heads())
        return tuple((partition, name.rstrip(b"\0").decode("ascii", "replace")) for _, _, partition, name in parts)
