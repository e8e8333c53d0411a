"""Which sources wait in the next epoch, because event time in them is too far ahead of the others of their group.

The rule is that of Flink: a source waits while its watermark is more than the allowed drift ahead of the least one of
the group. Who counts for the least one is said more narrowly: a source that **has left something unread** in the epoch
before, and has a watermark. It reads in the next epoch, so that one comes, and after it is decided anew. That is why
nothing stalls: Spark plans no epoch, and ends `available-now`, when no source has anything to read; and here whoever
waits does so for one that has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.kernel.secret import get_logger
from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.function.epoch_gate import AlignedSource

logger = get_logger(__name__)


@dataclass(frozen=True)
class _Limit:
    """How far the event time of a source may be, and when that was said."""

    watermark: int
    said: int


class SourceAlignment:
    """Opens and closes the gates of aligned sources, from epoch to epoch of one attempt.

    Args:
        aligned: The aligned sources, by the uids of their clocks.
    """

    def __init__(self, aligned: Mapping[str, AlignedSource]) -> None:
        self._groups: dict[str, dict[str, AlignedSource]] = {}
        for uid, source in aligned.items():
            self._groups.setdefault(source.alignment.group, {})[uid] = source
            source.gate.begin()
        self._limits: dict[str, _Limit] = {}

    def decide(self, watermarks: Mapping[str, int], processing_time: int) -> set[str]:
        """Says who waits in the next epoch.

        Args:
            watermarks: After the last epoch, by clock.
            processing_time: Of that epoch.

        Returns:
            The clocks of the sources that wait.
        """
        waiting: set[str] = set()
        for members in self._groups.values():
            times = {uid: watermarks.get(uid, MIN_WATERMARK) for uid in members}
            known = {uid: time for uid, time in times.items() if MIN_WATERMARK < time < MAX_WATERMARK}
            waiting |= self._of_group(members, known, processing_time)
        return waiting

    def close(self) -> None:
        """The attempt has ended."""
        for members in self._groups.values():
            for source in members.values():
                source.gate.begin()

    def _of_group(
        self, members: Mapping[str, AlignedSource], known: Mapping[str, int], processing_time: int
    ) -> set[str]:
        unread = {uid for uid in known if members[uid].gate.has_more}
        least = min((known[uid] for uid in unread), default=None)
        waiting: set[str] = set()
        for is_new in (False, True):
            self._say_limits(members, least, processing_time, is_new=is_new)
            limits = self._limits
            waiting = {uid for uid, time in known.items() if uid in limits and time > limits[uid].watermark}
            if unread - waiting:
                break  # somebody reads, so there is a next epoch
        for uid, source in members.items():
            if uid in waiting and not source.gate.is_closed:
                limit = self._limits[uid].watermark
                logger.debug("the source of %r waits: its watermark is %d, and may be %d", uid, known[uid], limit)
            source.gate.close() if uid in waiting else source.gate.open()
        return waiting

    def _say_limits(
        self, members: Mapping[str, AlignedSource], least: int | None, processing_time: int, *, is_new: bool
    ) -> None:
        """Limits hold for the update interval of a source, unless they are to be new ones."""
        for uid, source in members.items():
            alignment, before = source.alignment, self._limits.get(uid)
            if least is None:
                self._limits.pop(uid, None)
            elif is_new or before is None or processing_time - before.said >= alignment.interval:
                self._limits[uid] = _Limit(least + alignment.drift, processing_time)
