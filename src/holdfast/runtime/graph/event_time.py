"""Event time: timestamps that tasks observe become watermarks of the steps below, at the end of the same epoch.

A step that assigns timestamps is a *clock*. Its tasks put the greatest timestamp that they saw into their markers, and
markers pass on those that were read, so a task that has read its input knows the greatest timestamp of every clock
above it. The watermark of a step is that of the slowest of its clocks, and never decreases. It holds at the end of the
epoch, when timers fire; functions see the one before.

A clock *per partition* has tasks that each read one partition of a source. Its time in an epoch is the least of what
its tasks reported as their greatest, and over several epochs the greatest of these. Its tasks report the negative of
their greatest timestamp, so that markers merge all clocks alike.

A clock whose source is paused is never idle: the source has unread data, which would be late. A clock whose sources
have ended is at the end of time, as in Flink, so that others need not wait for it.

After a restart event time begins anew, as in Flink. Checkpoints have it all the same, for replays of an epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK, WatermarkStrategy

_PAUSED: Final = 2**63 - 1
"""Time at which a clock with a paused source was heard: it is never so long ago that the clock is idle."""

Generators = Mapping[str, Mapping[int, str]]
"""The watermark generator of each subtask, pickled, in base 64, by clock."""
Observed = Mapping[str, int]
"""The greatest timestamp by clock; of a clock per partition the greatest of negative ones."""


@dataclass(frozen=True)
class WatermarkClock:
    """A step that assigns timestamps; see `WatermarkStrategy` for the numbers."""

    out_of_orderness: int | None
    idleness: int | None
    is_per_partition: bool = False
    has_generator: bool = False

    @classmethod
    def of(cls, strategy: WatermarkStrategy) -> WatermarkClock:
        has_generator = strategy.supplier is not None
        return cls(strategy.out_of_orderness, strategy.idleness, strategy.is_per_partition, has_generator)

    @property
    def follows_partitions(self) -> bool:
        """Whether a real-time task compares the timestamps of its partitions. A generator sees them all as one."""
        return self.is_per_partition and not self.has_generator

    def reached(self, before: int | None, observed: int | None) -> int | None:
        """Return the timestamp of a clock after an epoch, given that before it."""
        if observed is None:
            return before
        now = -observed if self.is_per_partition else observed
        return now if before is None else max(before, now)

    def watermark(self, greatest: int | None) -> int:
        """Return the watermark after a greatest timestamp: no element with this time or an older one follows."""
        if greatest is None or self.out_of_orderness is None:
            return MIN_WATERMARK
        return max(greatest - self.out_of_orderness - 1, MIN_WATERMARK)


@dataclass(frozen=True)
class EventTime:
    """Event time at the beginning of an epoch, or of an epoch job of it.

    Attributes:
        clocks: The clocks of the job.
        watermarks: The watermark of each step at the end of the epoch before.
        reached: The timestamps of clocks after earlier epochs.
        observed: Timestamps that were observed in earlier epoch jobs of this epoch.
        idle: Clocks that are ignored.
        ended: Clocks whose sources end with this epoch, or have ended before.
        is_over: Whether event time ends with this epoch.
    """

    clocks: Mapping[str, WatermarkClock] = field(default_factory=dict)
    watermarks: Mapping[str, int] = field(default_factory=dict)
    reached: Mapping[str, int] = field(default_factory=dict)
    observed: Observed = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    is_over: bool = False

    def before(self, uid: str) -> int:
        return self.watermarks.get(uid, MIN_WATERMARK)

    def after(self, uid: str, clocks: Collection[str], observed: Observed) -> int:
        """Return the watermark of a step at the end of the epoch.

        Args:
            uid: The step.
            clocks: The clocks whose elements it gets; none if its event time does not advance.
            observed: The greatest timestamps of the epoch.
        """
        open_clocks = [clock for clock in clocks if clock not in self.ended]
        if self.is_over or (clocks and not open_clocks):
            return MAX_WATERMARK
        now = self.plus(observed)
        active = [clock for clock in open_clocks if clock not in now.idle]
        watermarks = [self.clocks[clock].watermark(now.reached_by(clock)) for clock in active]
        return max(self.before(uid), min(watermarks, default=MIN_WATERMARK))

    def latest(self, clocks: Iterable[str], observed: Observed) -> int:
        """Return the greatest timestamp of some clocks; of a clock per partition it is that of the slowest one."""
        now = self.plus(observed)
        return max((at for uid in clocks if (at := now.reached_by(uid)) is not None), default=MIN_WATERMARK)

    def reached_by(self, clock: str) -> int | None:
        """Return the timestamp of a clock with what was observed; None if it has none."""
        return self.clocks[clock].reached(self.reached.get(clock), self.observed.get(clock))

    def plus(self, observed: Observed) -> EventTime:
        """Return the event time after more was observed in the epoch; a clock that observes is not idle."""
        return replace(self, observed=merge_observed(self.observed, observed), idle=self.idle - observed.keys())


class EventTimeKeeper:
    """Event time of one job attempt, from epoch to epoch.

    Args:
        recorded: The result of `to_json` after an earlier epoch; None to begin anew.

    Attributes:
        ended: Clocks whose sources end with the next epoch, or have ended before.
    """

    def __init__(self, recorded: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.ended: frozenset[str] = frozenset()
        known = recorded or {}
        self._watermarks: dict[str, int] = dict(known.get("watermarks", {}))
        self._reached: dict[str, int] = dict(known.get("reached", {}))
        self._heard: dict[str, int] = dict(known.get("heard", {}))
        self._generators: dict[str, dict[int, str]] = {
            uid: {int(subtask): held for subtask, held in one.items()}
            for uid, one in known.get("generators", {}).items()
        }

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return the event time for a checkpoint; empty in a job without event time."""
        watermarks = {uid: time for uid, time in self._watermarks.items() if time != MIN_WATERMARK}
        generators = {uid: {str(task): held for task, held in one.items()} for uid, one in self._generators.items()}
        parts: dict[str, Mapping[str, Any]] = {
            "watermarks": watermarks,
            "reached": self._reached,
            "heard": self._heard,
            "generators": generators,
        }
        return {name: dict(part) for name, part in parts.items() if part}

    def begin(self, clocks: Mapping[str, WatermarkClock], processing_time: int, *, is_over: bool) -> EventTime:
        """Return the event time for the tasks of an epoch."""
        idle = frozenset(
            uid
            for uid, clock in clocks.items()
            if clock.idleness is not None
            and processing_time - self._heard.setdefault(uid, processing_time) >= clock.idleness
        )
        return EventTime(
            clocks, dict(self._watermarks), dict(self._reached), idle=idle, ended=self.ended, is_over=is_over
        )

    def move_on(
        self, began: EventTime, steps: Mapping[str, tuple[str, ...]], observed: Observed, processing_time: int
    ) -> None:
        """Advance event time after an epoch was accepted.

        Args:
            began: The result of `begin` for it.
            steps: The clocks of each step.
            observed: The greatest timestamps of the epoch.
            processing_time: The processing time of the epoch.
        """
        self._watermarks = {uid: began.after(uid, clocks, observed) for uid, clocks in steps.items()}
        after = began.plus(observed)
        self._reached = {uid: at for uid in began.clocks if (at := after.reached_by(uid)) is not None}
        self._heard.update(dict.fromkeys(observed, processing_time))

    def pause_sources(self, clocks: Iterable[str], processing_time: int) -> None:
        """Record that the sources of these clocks, and no others, are paused, so that they are not idle."""
        for uid, time in self._heard.items():
            if time == _PAUSED:
                self._heard[uid] = processing_time
        self._heard.update(dict.fromkeys(clocks, _PAUSED))

    def keep(self, uid: str, subtask: int, held: str) -> None:
        """Record the state of a watermark generator after an epoch that was accepted."""
        self._generators.setdefault(uid, {})[subtask] = held

    @property
    def generators(self) -> Generators:
        """The watermark generator of each subtask after the last epoch."""
        return {uid: dict(one) for uid, one in self._generators.items()}

    @property
    def watermarks(self) -> Mapping[str, int]:
        """The watermark of each step at the end of the last epoch."""
        return self._watermarks

    def resume(self) -> None:
        """Leave the end of event time, because the job goes on: watermarks follow from the timestamps again."""
        self._watermarks = {}


def merge_observed(*observed: Observed) -> dict[str, int]:
    """Return the greatest timestamp of each clock."""
    merged: dict[str, int] = {}
    for part in observed:
        for uid, timestamp in part.items():
            merged[uid] = max(timestamp, merged.get(uid, timestamp))
    return merged
