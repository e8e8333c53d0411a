"""Watermark alignment: pauses sources that are ahead of others of their group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import ConfigurationError
from holdfast.kernel.secret import get_logger
from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK, WatermarkAlignment
from holdfast.runtime.function.source import AlignedSource, EpochGate

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

    Raises:
        ConfigurationError: A source has no gate.
    """

    def __init__(self, aligned: Mapping[str, AlignedSource]) -> None:
        self._groups: dict[str, dict[str, AlignedSource]] = {}
        self._gates = require_gates(aligned)
        for uid, source in aligned.items():
            self._groups.setdefault(source.alignment.group, {})[uid] = source
            self._gates[uid].reset()
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
        for gate in self._gates.values():
            gate.reset()

    def _align_group(
        self, members: Mapping[str, AlignedSource], known: Mapping[str, int], processing_time: int
    ) -> set[str]:
        unread = {uid for uid in known if self._gates[uid].has_more}
        least = min((known[uid] for uid in unread), default=None)
        waiting: set[str] = set()
        for is_new in (False, True):
            self._update_limits(members, least, processing_time, is_new=is_new)
            limits = self._limits
            waiting = {uid for uid, time in known.items() if uid in limits and time > limits[uid].watermark}
            if unread - waiting:
                break  # a source reads, so there is a next epoch
        for uid in members:
            gate = self._gates[uid]
            if uid in waiting and not gate.is_closed:
                limit = self._limits[uid].watermark
                logger.debug("paused the source of %r: its watermark is %d, its limit %d", uid, known[uid], limit)
            gate.close() if uid in waiting else gate.open()
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


def require_gates(aligned: Mapping[str, AlignedSource]) -> dict[str, EpochGate]:
    """Return the gates by which a job by epochs pauses its aligned sources, by the uids of their clocks.

    Raises:
        ConfigurationError: A source has none: the program was made for a real-time job.
    """
    gates = {uid: source.gate for uid, source in aligned.items() if source.gate is not None}
    without = aligned.keys() - gates.keys()
    if without:
        raise ConfigurationError(
            f"with_watermark_alignment() of {min(without)!r}: the source can wait for others only in a real-time job, "
            "and execution.trigger was changed after from_source(). Set it to real-time again, or remove the alignment "
            "from the strategy."
        )
    return gates


class AlignmentLimits:
    """The limits of the aligned sources of a real-time job, by the watermarks that its tasks report, as in Flink.

    The limit of a source is the least watermark that a task reported for a source of its group, plus its drift. All
    tasks count, also those of the source itself.

    Args:
        alignments: The alignment of each source, by the uid of its clock.

    Attributes:
        limits: The largest watermark with which a source is read, by the uid of its clock; those without are not
            limited.
    """

    def __init__(self, alignments: Mapping[str, WatermarkAlignment]) -> None:
        self._alignments = alignments
        self._reports: dict[int, Mapping[str, int | None]] = {}
        self.limits: Mapping[str, int] = {}

    def report(self, task: int, watermarks: Mapping[str, int | None]) -> bool:
        """Record the watermarks of a task in place of those before, and return whether a limit has changed.

        Args:
            task: Number of the task.
            watermarks: Its watermark of each clock; None for one that does not count.
        """
        self._reports[task] = watermarks
        least: dict[str, int] = {}
        for report in self._reports.values():
            for uid, watermark in report.items():
                if watermark is not None:
                    group = self._alignments[uid].group
                    least[group] = min(least.get(group, watermark), watermark)
        before = self.limits
        self.limits = {uid: least[one.group] + one.drift for uid, one in self._alignments.items() if one.group in least}
        return self.limits != before
