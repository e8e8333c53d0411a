"""Stateful processors as people write them for Spark, each with its input, batch by batch.

Rows are ``key string, at timestamp, value bigint``. None of the outputs depends on how long anything takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

INPUT = "key string, at timestamp, value bigint"
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3_600_000


@dataclass
class Program:
    """One processor with what it is run on.

    Attributes:
        batches: The rows of each batch: key, seconds after the start, value.
        delay: Of the watermark; None for no event time.
        initial: Rows of initial state: key and value.
        in_pandas: Whether it takes and returns frames of pandas.
        pauses: Seconds of processing time before each batch; none if it is empty.
        ended: The column of the output that is its event time.
        then: What the output goes into; it has no batches of its own.
    """

    processor: type[StatefulProcessor]
    output: str
    batches: list[list[tuple[str | None, int, int | None]]]
    mode: str = "None"
    keys: list[str] = field(default_factory=lambda: ["key"])
    delay: str | None = None
    initial: list[tuple[str, int]] | None = None
    in_pandas: bool = False
    pauses: list[int] = field(default_factory=list)
    ended: str = ""
    then: Program | None = None


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def milliseconds(instant: datetime) -> int:
    return int(instant.timestamp()) * 1000


class Processor(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def close(self) -> None:
        pass


class RunningCount(Processor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        known = self.count.get()
        total = (known[0] if known is not None else 0) + sum(1 for _ in rows)
        self.count.update((total,))
        yield Row(key=key[0], n=total)


class EveryRow(Processor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.sums = handle.getValueState("sums", "total bigint, n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            total, n = self.sums.get() if self.sums.exists() else (0, 0)
            total, n = total + (row.value or 0), n + 1
            self.sums.update((total, n))
            yield Row(key=row.key, value=row.value, total=total, n=n)


class ClearedAtTen(Processor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            total = (self.total.get() or (0,))[0] + row["value"]
            if total >= 10:
                self.total.clear()
            else:
                self.total.update((total,))
            yield Row(key=key[0], total=total, kept=self.total.exists())


class LastThree(Processor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.values = handle.getListState("values", "value bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        values = [*self.values.get(), *((row.value,) for row in rows)][-3:]
        self.values.put(values)
        yield Row(key=key[0], values=",".join(str(value) for (value,) in values))


class Appended(Processor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.values = handle.getListState("values", "value bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        existed = self.values.exists()
        first, *others = [(row.value,) for row in rows]
        self.values.appendValue(first)
        if others:
            self.values.appendList(others)
        found = [value for (value,) in self.values.get()]
        if len(found) > 4:
            self.values.clear()
        yield Row(key=key[0], existed=existed, values=",".join(map(str, found)), left=self.values.exists())


class ByValue(Processor):
    """A map from values to how often they came."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.counts = handle.getMapState("counts", "value bigint", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            n = self.counts.getValue((row.value,))[0] if self.counts.containsKey((row.value,)) else 0
            self.counts.updateValue((row.value,), (n + 1,))
        found = sorted((k[0], v[0]) for k, v in self.counts.iterator())
        yield Row(key=key[0], counts=str(found))


class MapKeysAndValues(Processor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getMapState("seen", "value bigint, even boolean", "last bigint, text string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        existed = self.seen.exists()
        for row in rows:
            self.seen.updateValue((row.value, row.value % 2 == 0), (row.value * 10, f"v{row.value}"))
        if len(list(self.seen.keys())) > 3:
            self.seen.removeKey((1, False))
        yield Row(
            key=key[0],
            existed=existed,
            keys=str(sorted(self.seen.keys())),
            values=str(sorted(self.seen.values())),
            missing=self.seen.getValue((99, False)) is None,
        )


class MapCleared(Processor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getMapState("seen", "value bigint", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.value < 0:
                self.seen.clear()
            else:
                self.seen.updateValue((row.value,), (1,))
        yield Row(key=key[0], size=len(list(self.seen.keys())), exists=self.seen.exists())


class Deduplicated(Processor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getMapState("seen", "value bigint", "flag boolean")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if not self.seen.containsKey((row.value,)):
                self.seen.updateValue((row.value,), (True,))
                yield row


class FirstRowOnly(Processor):
    """Does not read the iterator to its end."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        first = next(rows)
        return iter([Row(key=first.key, value=first.value)])


class TwoKeys(Processor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.n = handle.getValueState("n", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        name, value = key
        n = (self.n.get() or (0,))[0] + len(list(rows))
        self.n.update((n,))
        yield Row(name=name, value=value, n=n)


class NoTimes(Processor):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        times = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield Row(key=key[0], times=str(times), rows=str([row.asDict() for row in rows])[:0])


class SeveralStates(Processor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.least = handle.getValueState("least", "value bigint")
        self.greatest = handle.getValueState("greatest", "value bigint")
        self.all = handle.getListState("all", "value bigint, key string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if not self.least.exists() or row.value < self.least.get()[0]:
                self.least.update((row.value,))
            if not self.greatest.exists() or row.value > self.greatest.get()[0]:
                self.greatest.update((row.value,))
            self.all.appendValue((row.value, row.key))
        yield Row(
            key=key[0], least=self.least.get()[0], greatest=self.greatest.get()[0], n=sum(1 for _ in self.all.get())
        )


class Started(Processor):
    """Goes on from initial state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total bigint")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.total.update((initialState.value + (self.total.get() or (0,))[0],))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total = (self.total.get() or (0,))[0] + sum(row.value for row in rows)
        self.total.update((total,))
        yield Row(key=key[0], total=total)


class TimerAtOnce(Processor):
    """A timer for a time that is past fires in the same batch."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now - HOUR)
        self.handle.registerTimer(now + 1000 * HOUR)
        yield Row(key=key[0], what="rows", n=len(list(rows)))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        past = expiredTimerInfo.getExpiryTimeInMs() < timerValues.getCurrentProcessingTimeInMs()
        yield Row(key=key[0], what="timer", n=int(past))


class DeletedTimer(Processor):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now - HOUR)
        self.handle.registerTimer(now - HOUR)
        if any(row.value == 0 for row in rows):
            self.handle.deleteTimer(now - HOUR)
        yield Row(key=key[0], timers=len(list(self.handle.listTimers())))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(key=key[0], timers=-1)


class ListedTimers(Processor):
    """Timers stay listed from batch to batch until they are deleted."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.value < 0:
                self.handle.deleteTimer(4_000_000_000_000 - row.value)
            else:
                self.handle.registerTimer(4_000_000_000_000 + row.value)
        listed = [time - 4_000_000_000_000 for time in self.handle.listTimers()]
        yield Row(key=key[0], timers=str(sorted(listed)))


class SessionsByTimer(Processor):
    """A session ends ten seconds of event time after its last row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.session = handle.getValueState("session", "n bigint, ends bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, ends = self.session.get() or (0, 0)
        if ends:
            self.handle.deleteTimer(ends)
        for row in rows:
            n, ends = n + 1, max(ends, milliseconds(row.at) + 10_000)
        self.session.update((n, ends))
        self.handle.registerTimer(ends)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n, ends = self.session.get()
        self.session.clear()
        yield Row(key=key[0], n=n, ends=(ends - milliseconds(START)) // 1000)


class LateRows(Processor):
    """Rows that the watermark has passed are dropped."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        watermark = timerValues.getCurrentWatermarkInMs()
        for row in rows:
            yield Row(key=key[0], value=row.value, after=milliseconds(row.at) > watermark)


class TimerAtTheWatermark(Processor):
    """Says which timers a watermark fires: those before it, at it, and not those after it."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            for offset in (-1, 0, 1):
                self.handle.registerTimer(milliseconds(row.at) + offset)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(key=key[0], at=expiredTimerInfo.getExpiryTimeInMs() - milliseconds(START))


def rows(*values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Rows of a key and values, a second apart."""
    return [(key, second, value) for second, (key, *found) in enumerate(values) for value in found]


PLAIN = [
    rows(("a", 1, 2), ("b", 5)),
    rows(("a", 3), ("c", 7, 7, 8)),
    rows(("b", 4, 2), ("a", 2, 9), ("c", 1)),
]
SIGNED = [rows(("a", 1, 2, 3), ("b", 1)), rows(("a", -1), ("b", 2, -2, 3)), rows(("a", 4), ("b", -3))]
TIMED = [
    [("a", 0, 1), ("b", 3, 2)],
    [("a", 8, 3), ("b", 30, 4)],
    [("a", 10, 5), ("b", 31, 6), ("a", 50, 7)],
    [("c", 100, 8), ("a", 20, 9)],
    [("c", 200, 10)],
]
PROGRAMS = {
    "running count": Program(RunningCount, "key string, n bigint", PLAIN),
    "every row": Program(EveryRow, "key string, value bigint, total bigint, n int", PLAIN),
    "null values": Program(
        EveryRow, "key string, value bigint, total bigint, n int", [[("a", 0, None), ("a", 1, 4)], [("a", 2, None)]]
    ),
    "cleared at ten": Program(ClearedAtTen, "key string, total bigint, kept boolean", PLAIN),
    "last three": Program(LastThree, "key string, values string", PLAIN),
    "appended": Program(Appended, "key string, existed boolean, values string, left boolean", PLAIN),
    "by value": Program(ByValue, "key string, counts string", PLAIN),
    "keys and values of a map": Program(
        MapKeysAndValues, "key string, existed boolean, keys string, values string, missing boolean", PLAIN
    ),
    "a map is cleared": Program(MapCleared, "key string, size int, exists boolean", SIGNED),
    "deduplicated": Program(Deduplicated, INPUT, PLAIN + PLAIN),
    "first row only": Program(FirstRowOnly, "key string, value bigint", PLAIN),
    "two keys": Program(TwoKeys, "name string, value bigint, n bigint", PLAIN, keys=["key", "value"]),
    "no times": Program(NoTimes, "key string, times string, rows string", PLAIN),
    "several states": Program(SeveralStates, "key string, least bigint, greatest bigint, n int", PLAIN),
    "initial state": Program(Started, "key string, total bigint", PLAIN, initial=[("a", 100), ("d", 1), ("a", 20)]),
    "initial state of nobody": Program(Started, "key string, total bigint", PLAIN, initial=[("z", 100)]),
    "timer at once": Program(TimerAtOnce, "key string, what string, n int", PLAIN, mode="ProcessingTime"),
    "deleted timer": Program(
        DeletedTimer, "key string, timers int", [rows(("a", 1), ("b", 0)), rows(("a", 0), ("b", 1))], "ProcessingTime"
    ),
    "listed timers": Program(ListedTimers, "key string, timers string", SIGNED, mode="ProcessingTime"),
    "sessions": Program(
        SessionsByTimer, "key string, n bigint, ends bigint", TIMED, mode="EventTime", delay="5 seconds"
    ),
    "late rows": Program(
        LateRows, "key string, value bigint, after boolean", TIMED, mode="EventTime", delay="5 seconds"
    ),
    "late rows without delay": Program(
        LateRows, "key string, value bigint, after boolean", TIMED, mode="EventTime", delay="0 seconds"
    ),
    "timer at the watermark": Program(
        TimerAtTheWatermark, "key string, at bigint", TIMED, mode="EventTime", delay="0 seconds"
    ),
}
