"""What the sinks of a job have committed, how long that took, and what waits; read from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.kernel.clock import Clock, SystemClock

EpochKey = tuple[str, int]
"""Incarnation and epoch."""

_COUNTED: Final = {"committed": "successful", "already": "already", "known": "failed", "retry": "retried"}


@dataclass(frozen=True)
class SinkNumbers:
    """The numbers of one sink since its process runs the job.

    Attributes:
        records: Elements that are committed.
        bytes: Of the files or records that they were staged in, as far as the sink says so.
        epochs: Epochs that are committed.
        seconds: Time that commits have taken, pauses between tries and failed ones included.
        last_ms: How long the last epoch took.
        last_epoch: The last epoch that is committed, None before the first.
        successful: Committables that a commit has made visible.
        already: Committables that turned out to be visible.
        failed: Committables that the committer gave up on purpose.
        retried: How often a committable was to be tried again.
        pending: Committables that wait: of accepted epochs, and not committed yet.
        pending_records: Elements in them.
        pending_epochs: Epochs that they are of: how far the sink is behind the job.
        pending_since: When the oldest epoch of these was accepted, in milliseconds since 1970; None if none waits.
    """

    records: int = 0
    bytes: int = 0
    epochs: int = 0
    seconds: float = 0.0
    last_ms: float = 0.0
    last_epoch: int | None = None
    successful: int = 0
    already: int = 0
    failed: int = 0
    retried: int = 0
    pending: int = 0
    pending_records: int = 0
    pending_epochs: int = 0
    pending_since: int | None = None

    def lag_ms(self, now: int) -> int:
        """How long the oldest output has waited for its commit, in milliseconds; 0 if none waits."""
        return 0 if self.pending_since is None else max(0, now - self.pending_since)

    def to_json(self, uid: str) -> dict[str, Any]:
        """What progress says of the sink."""
        return {"id": uid, "epoch": self.last_epoch, "commit_ms": self.last_ms, "behind": self.pending_epochs}


@dataclass(frozen=True)
class _Waiting:
    since: int
    committables: int
    records: int


class SinkMeter:
    """Counts; safe to use from any thread.

    Args:
        clock: Says since when output waits.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._numbers: dict[str, SinkNumbers] = {}
        self._waiting: dict[str, dict[EpochKey, _Waiting]] = {}
        self._before: dict[str, dict[EpochKey, _Waiting]] = {}

    def begin(self, uids: Sequence[str]) -> None:
        """A job attempt begins with these sinks. What an earlier one had staged comes again, or is forgotten."""
        with self._lock:
            self._before, self._waiting = self._waiting, {}
            self._numbers = {uid: self._numbers.get(uid, SinkNumbers()) for uid in uids}

    def staged(self, output: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Output of accepted epochs waits for its commit; as `_metadata` holds it, by uid."""
        now = self._clock.now_ms()
        with self._lock:
            for uid, entries in output.items():
                by_epoch: dict[EpochKey, list[Mapping[str, Any]]] = {}
                for entry in entries:
                    by_epoch.setdefault((str(entry.get("incarnation", "")), int(entry["epoch"])), []).append(entry)
                waiting, before = self._waiting.setdefault(uid, {}), self._before.get(uid, {})
                for key, members in by_epoch.items():
                    since = before[key].since if key in before else now
                    waiting.setdefault(key, _Waiting(since, len(members), records_of(members)))

    @contextmanager
    def commit(self, uid: str, key: EpochKey, entries: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Around the commit of an epoch of a sink, which has failed if it is left with an error."""
        began, is_done = time.perf_counter(), False
        try:
            yield
            is_done = True
        finally:
            took = time.perf_counter() - began
            with self._lock:
                numbers = self._numbers.get(uid, SinkNumbers())
                numbers = replace(numbers, seconds=numbers.seconds + took)
                if is_done:
                    self._waiting.get(uid, {}).pop(key, None)
                    numbers = replace(
                        numbers,
                        records=numbers.records + records_of(entries),
                        bytes=numbers.bytes + _bytes_of(entries),
                        epochs=numbers.epochs + 1,
                        last_ms=round(1000 * took, 1),
                        last_epoch=key[1],
                    )
                self._numbers[uid] = numbers

    def answered(self, uid: str, answers: Sequence[str]) -> None:
        """What a committer has said of its committables in one try."""
        with self._lock:
            numbers = self._numbers.get(uid, SinkNumbers())
            more = {field: getattr(numbers, field) + answers.count(word) for word, field in _COUNTED.items()}
            self._numbers[uid] = replace(numbers, **more)

    @property
    def numbers(self) -> dict[str, SinkNumbers]:
        """The numbers now, by uid."""
        with self._lock:
            return {uid: self._with_waiting(uid, numbers) for uid, numbers in sorted(self._numbers.items())}

    def _with_waiting(self, uid: str, numbers: SinkNumbers) -> SinkNumbers:
        waiting = self._waiting.get(uid, {}).values()
        return replace(
            numbers,
            pending=sum(epoch.committables for epoch in waiting),
            pending_records=sum(epoch.records for epoch in waiting),
            pending_epochs=len(waiting),
            pending_since=min((epoch.since for epoch in waiting), default=None),
        )


def records_of(entries: Sequence[Mapping[str, Any]]) -> int:
    """How many elements committables have, as far as they say it."""
    counted: dict[tuple[int, int], int] = {}  # an entry has the rows of its subtask, which may have several
    for entry in entries:
        if isinstance(entry.get("rows"), int):
            counted[int(entry["epoch"]), int(entry["subtask"])] = entry["rows"]
    return sum(counted.values())


def _bytes_of(entries: Sequence[Mapping[str, Any]]) -> int:
    values = (entry.get("value") for entry in entries)
    sizes = (value.get("bytes") for value in values if isinstance(value, Mapping))
    return sum(size for size in sizes if isinstance(size, int))
