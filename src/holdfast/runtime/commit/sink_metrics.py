"""Metrics of sinks: what they have committed, how long it took, and what is pending."""

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

Output = Mapping[str, Sequence[Mapping[str, Any]]]
"""Committables by sink uid, as in `_metadata`."""

_COUNTED: Final = {
    "committed": "successful",
    "already": "already",
    "known": "failed",
    "retry": "retried",
}


@dataclass(frozen=True)
class SinkMetrics:
    """Metrics of one sink since the process began to run the job.

    Attributes:
        records: Committed records.
        bytes: Committed bytes, if the sink reports them.
        epochs: Committed epochs.
        seconds: Time in commits, including pauses between tries and failed commits.
        last_ms: Duration of the last commit of an epoch.
        last_epoch: Last committed epoch; None before the first.
        successful: Committables that a commit has made visible.
        already: Committables that were visible already.
        failed: Committables that the committer gave up on purpose.
        retried: Retries of committables.
        pending: Committables of accepted epochs that are not committed.
        pending_records: Records in them.
        pending_epochs: Epochs in them: how far the sink is behind the job.
        pending_since: When the oldest of these epochs was accepted, in milliseconds since 1970; None if nothing is
            pending.
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
        """Return the age of the oldest pending output in milliseconds; 0 if nothing is pending."""
        return 0 if self.pending_since is None else max(0, now - self.pending_since)

    def to_json(self, uid: str) -> dict[str, Any]:
        """Return the sink's part of the progress report."""
        return {"id": uid, "epoch": self.last_epoch, "commit_ms": self.last_ms, "behind": self.pending_epochs}


@dataclass(frozen=True)
class _Waiting:
    since: int
    committables: int
    records: int


class SinkMeter:
    """Collects the metrics of sinks. Safe to use from several threads.

    Args:
        clock: Time at which output becomes pending.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._numbers: dict[str, SinkMetrics] = {}
        self._waiting: dict[str, dict[EpochKey, _Waiting]] = {}
        self._accepted_at: dict[str, dict[EpochKey, int]] = {}
        self._errors: dict[str, str] = {}
        self._committed: dict[str, dict[str, int]] = {}  # by incarnation the last epoch: a sink commits them in order

    def is_new_error(self, uid: str, text: str) -> bool:
        """Return whether the error of a sink differs from the last one since a commit, of any attempt."""
        with self._lock:
            last, self._errors[uid] = self._errors.get(uid), text
        return text != last

    def begin(self, uids: Sequence[str]) -> None:
        """Begin a job attempt with these sinks. Output that an earlier attempt staged comes again, or is forgotten."""
        with self._lock:
            self._waiting = {}
            self._numbers = {uid: self._numbers.get(uid, SinkMetrics()) for uid in uids}

    def staged(self, output: Output) -> None:
        """Count output of accepted epochs as pending; as in `_metadata`, by uid.

        A restored checkpoint also names output that some sinks have committed: it is not pending again.
        """
        now = self._clock.now_ms()
        with self._lock:
            for uid, by_epoch in _by_epoch(output).items():
                waiting, accepted_at = self._waiting.setdefault(uid, {}), self._accepted_at.setdefault(uid, {})
                for key, members in by_epoch.items():
                    if not self._is_committed(uid, key):
                        since = accepted_at.setdefault(key, now)
                        waiting.setdefault(key, _Waiting(since, len(members), records_of(members)))

    def discarded(self, output: Output) -> None:
        """Stop counting output that is in no checkpoint, because its attempt has failed; its epochs run again."""
        with self._lock:
            for uid, by_epoch in _by_epoch(output).items():
                for key in by_epoch:
                    self._waiting.get(uid, {}).pop(key, None)

    @contextmanager
    def prepare(self, uid: str, restored: Output) -> Iterator[None]:
        """Count the restored output of a sink as pending while its target is checked, and after an error.

        The other sinks cannot commit until the target of this one is back, and the lag is to name this one.
        """
        own = {uid: restored.get(uid, ())}
        self.staged(own)
        yield
        self.discarded(own)

    @contextmanager
    def commit(self, uid: str, key: EpochKey, entries: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Measure the commit of one epoch of a sink; it has failed if an error leaves the block."""
        began, is_done = time.perf_counter(), False
        try:
            yield
            is_done = True
        finally:
            took = time.perf_counter() - began
            with self._lock:
                numbers = self._numbers.get(uid, SinkMetrics())
                numbers = replace(numbers, seconds=numbers.seconds + took)
                if is_done:
                    self._waiting.get(uid, {}).pop(key, None)
                    self._accepted_at.get(uid, {}).pop(key, None)
                    numbers = replace(numbers, last_ms=round(1000 * took, 1), last_epoch=key[1])
                if is_done and not self._is_committed(uid, key):
                    self._committed.setdefault(uid, {})[key[0]] = key[1]
                    numbers = replace(
                        numbers,
                        records=numbers.records + records_of(entries),
                        bytes=numbers.bytes + _bytes_of(entries),
                        epochs=numbers.epochs + 1,
                    )
                self._numbers[uid] = numbers

    def answered(self, uid: str, answers: Sequence[str]) -> None:
        """Count the answers of a committer."""
        with self._lock:
            numbers = self._numbers.get(uid, SinkMetrics())
            more = {field: getattr(numbers, field) + answers.count(word) for word, field in _COUNTED.items()}
            self._numbers[uid] = replace(numbers, **more)
            if "committed" in answers:
                self._errors.pop(uid, None)

    @property
    def numbers(self) -> dict[str, SinkMetrics]:
        """The metrics now, by uid."""
        with self._lock:
            return {uid: self._with_waiting(uid, numbers) for uid, numbers in sorted(self._numbers.items())}

    def _is_committed(self, uid: str, key: EpochKey) -> bool:
        return key[1] <= self._committed.get(uid, {}).get(key[0], -1)

    def _with_waiting(self, uid: str, numbers: SinkMetrics) -> SinkMetrics:
        waiting = self._waiting.get(uid, {}).values()
        return replace(
            numbers,
            pending=sum(epoch.committables for epoch in waiting),
            pending_records=sum(epoch.records for epoch in waiting),
            pending_epochs=len(waiting),
            pending_since=min((epoch.since for epoch in waiting), default=None),
        )


def _by_epoch(output: Output) -> dict[str, dict[EpochKey, list[Mapping[str, Any]]]]:
    found: dict[str, dict[EpochKey, list[Mapping[str, Any]]]] = {}
    for uid, entries in output.items():
        by_epoch = found.setdefault(uid, {})
        for entry in entries:
            by_epoch.setdefault((str(entry.get("incarnation", "")), int(entry["epoch"])), []).append(entry)
    return found


def records_of(entries: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of records in committables, if they state it."""
    counted: dict[tuple[int, int], int] = {}  # an entry has the rows of its subtask, which may have several
    for entry in entries:
        if isinstance(entry.get("rows"), int):
            counted[int(entry["epoch"]), int(entry["subtask"])] = entry["rows"]
    return sum(counted.values())


def _bytes_of(entries: Sequence[Mapping[str, Any]]) -> int:
    values = (entry.get("value") for entry in entries)
    sizes = (value.get("bytes") for value in values if isinstance(value, Mapping))
    return sum(size for size in sizes if isinstance(size, int))
