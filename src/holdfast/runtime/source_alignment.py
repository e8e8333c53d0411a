"""Watermark alignment: pauses sources that are ahead of others of their group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.kernel.secret import get_logger
from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.function.source import AlignedSource

logger = get_logger(__name__)


# As in Flink, a source pauses while its watermark is more than the allowed drift ahead of the
# least watermark of its group. Here only sources with a watermark **and unread input** count for the least one: such a
# source reads in the next epoch, so there is a next epoch, and the decision is made again after it. Otherwise the job
# could stall: Spark plans no epoch, and ends `available-now`, when no source has input.
@dataclass(frozen=True)
class _Limit:
    """Largest event time that a source may have, and the processing time at which the limit was set."""

    watermark: int
    set_at: int


class SourceAlignment:
    """Opens and closes the gates of aligned sources, from epoch to epoch of one attempt.

    Args:
        aligned: The aligned sources, by the uids of their clocks.
    """

    def __init__(self, aligned: Mapping[str, AlignedSource]) -> None:
        self._groups: dict[str, dict[str, AlignedSource]] = {}
        for uid, source in aligned.items():
            self._groups.setdefault(source.alignment.group, {})[uid] = source
            source.gate.reset()
        self._limits: dict[str, _Limit] = {}

    def decide(self, watermarks: Mapping[str, int], processing_time: int) -> set[str]:
        """Decide which sources pause in the next epoch, and open or close their gates.

        Args:
            watermarks: Watermarks after the last epoch, by clock.
            processing_time: Processing time of that epoch.

        Returns:
            The clocks of the sources that pause.
        """
        waiting: set[str] = set()
        for members in self._groups.values():
            times = {uid: watermarks.get(uid, MIN_WATERMARK) for uid in members}
            known = {uid: time for uid, time in times.items() if MIN_WATERMARK < time < MAX_WATERMARK}
            waiting |= self._align_group(members, known, processing_time)
        return waiting

    def close(self) -> None:
        """Open all gates at the end of the attempt."""
        for members in self._groups.values():
            for source in members.values():
                source.gate.reset()

    def _align_group(
        self, members: Mapping[str, AlignedSource], known: Mapping[str, int], processing_time: int
    ) -> set[str]:
        unread = {uid for uid in known if members[uid].gate.has_more}
        least = min((known[uid] for uid in unread), default=None)
        waiting: set[str] = set()
        for is_new in (False, True):
            self._update_limits(members, least, processing_time, is_new=is_new)
            limits = self._limits
            waiting = {uid for uid, time in known.items() if uid in limits and time > limits[uid].watermark}
            if unread - waiting:
                break  # a source reads, so there is a next epoch
        for uid, source in members.items():
            if uid in waiting and not source.gate.is_closed:
                limit = self._limits[uid].watermark
                logger.debug("paused the source of %r: its watermark is %d, its limit %d", uid, known[uid], limit)
            source.gate.close() if uid in waiting else source.gate.open()
        return waiting

    def _update_limits(
        self, members: Mapping[str, AlignedSource], least: int | None, processing_time: int, *, is_new: bool
    ) -> None:
        """Set the limits that are due: once per update interval of a source, or all if `is_new` is set."""
        for uid, source in members.items():
            alignment, before = source.alignment, self._limits.get(uid)
            if least is None:
                self._limits.pop(uid, None)
            elif is_new or before is None or processing_time - before.set_at >= alignment.interval:
                self._limits[uid] = _Limit(least + alignment.drift, processing_time)
