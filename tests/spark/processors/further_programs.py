"""Further programs: in which time passes, in pandas, and of two processors one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from tests.spark.processors.programs import (
    HOUR,
    INPUT,
    PLAIN,
    START,
    TIMED,
    Processor,
    Program,
    SessionsByTimer,
    at,
    milliseconds,
)

LIVES = 40_000


class LongLived(Processor):
    """A time to live that does not end."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", "n bigint", ttlDurationMs=100 * HOUR)
        self.values = handle.getListState("values", "n bigint", ttlDurationMs=100 * HOUR)
        self.map = handle.getMapState("map", "k bigint", "n bigint", ttlDurationMs=100 * HOUR)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.value.update(((self.value.get() or (0,))[0] + row.value,))
            self.values.appendValue((row.value,))
            self.map.updateValue((row.value,), (row.value,))
        yield Row(
            key=key[0],
            total=self.value.get()[0],
            values=str(list(self.values.get())),
            map=str(sorted(self.map.keys())),
        )


class Expiring(Processor):
    """Tells what it still knows of earlier rows, and remembers these."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", "n bigint", ttlDurationMs=LIVES)
        self.values = handle.getListState("values", "n bigint", ttlDurationMs=LIVES)
        self.map = handle.getMapState("map", "k bigint", "n bigint", ttlDurationMs=LIVES)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        known = self.value.get()
        told = {
            "value": "none" if known is None else str(known[0]),
            "values": str([value for (value,) in self.values.get()]),
            "map": str(sorted((k[0], v[0]) for k, v in self.map.iterator())),
            "exist": str([self.value.exists(), self.values.exists(), self.map.exists(), self.map.containsKey((1,))]),
        }
        for row in rows:
            if row.value < 9:
                self.value.update((row.value,))
                self.values.appendValue((row.value,))
                self.map.updateValue((row.value,), (10 * row.value,))
        yield Row(key=key[0], **told)


class Renewed(Processor):
    """Reads with odd rows, and with even ones writes again what it finds: of the map only what has even keys."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", "n bigint", ttlDurationMs=LIVES)
        self.values = handle.getListState("values", "n bigint", ttlDurationMs=LIVES)
        self.map = handle.getMapState("map", "k bigint", "n bigint", ttlDurationMs=LIVES)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        [row] = rows
        value, values, pairs = self.value.get(), list(self.values.get()), sorted(self.map.iterator())
        if row.value % 2 == 0:
            if row.value == 0:
                value, values, pairs = (1,), [(1,), (2,)], [((1,), (10,)), ((2,), (20,))]
            if row.value != 4:
                self.value.update(value)
                self.values.put(values)
            for (k,), n in pairs:
                if row.value == 0 or k % 2 == 0:
                    self.map.updateValue((k,), n)
            self.values.appendList([(row.value + 10,), (row.value + 11,)])
        told = [str(value), str(values), str(pairs), str([self.values.exists(), self.map.containsKey((1,))])]
        yield Row(key=key[0], **dict(zip(("value", "values", "map", "exist"), told, strict=True)))


class Forgetful(Processor):
    """What a timer still finds of two states, of which one lives shorter than the timer waits; some is taken away."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.short = handle.getValueState("short", "n bigint", ttlDurationMs=LIVES // 4)
        self.values = handle.getListState("values", "n bigint", ttlDurationMs=LIVES)
        self.map = handle.getMapState("map", "k bigint", "n bigint", ttlDurationMs=LIVES)
        self.calls = handle.getValueState("calls", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        calls = (self.calls.get() or (0,))[0] + 1
        self.calls.update((calls,))
        before = self._told()
        if calls == 1:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 37_000)
            self.short.update((calls,))
        for row in rows:
            self.values.appendValue((row.value,))
            self.map.updateValue((row.value,), (calls,))
        if calls == 3:
            self.map.removeKey((2,))
            self.values.clear()
            self.values.appendValue((calls,))
        yield Row(key=key[0], kind="rows", told=before)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(key=key[0], kind="timer", told=str([self.short.exists(), self.short.get(), self.calls.get()]))

    def _told(self) -> str:
        short = None if self.short.get() is None else self.short.get()[0]
        return str([short, list(self.values.get()), sorted(self.map.iterator()), sorted(self.map.keys())])


class SumsOfFrames(Processor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total bigint")

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        self.total.update((int(initialState["value"].sum()),))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            total = (self.total.get() or (0,))[0] + int(frame["value"].sum())
            self.total.update((total,))
            yield pd.DataFrame({"key": [key[0]], "total": [total], "first": [frame["at"].min()]})


class LargeRowsOfFrames(Processor):
    """Gives back a part of each frame, and the columns in the order in which they came."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.values = handle.getListState("values", "value bigint")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            known = [value for (value,) in self.values.get()]
            self.values.put([(int(value),) for value in frame["value"]])
            large = frame[frame["value"] > max(known, default=1)]
            yield large.assign(columns=",".join(frame.columns), kinds="".join(dtype.kind for dtype in frame.dtypes))


class SessionsOfFrames(SessionsByTimer):
    """The same in pandas."""

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n, ends = self.session.get() or (0, 0)
        if ends:
            self.handle.deleteTimer(ends)
        for frame in rows:
            n, ends = n + len(frame), max(ends, milliseconds(frame["at"].max().tz_localize("UTC")) + 10_000)
        self.session.update((n, ends))
        self.handle.registerTimer(ends)
        yield pd.DataFrame()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        n, ends = self.session.get()
        self.session.clear()
        yield pd.DataFrame({"key": [key[0]], "n": [n], "ends": [(ends - milliseconds(START)) // 1000]})


class TimedSessions(SessionsByTimer):
    """The same, with the instant at which each has ended."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n, ends = self.session.get()
        self.session.clear()
        yield Row(key=key[0], n=n, ended=at((ends - milliseconds(START)) // 1000))


class Postponed(Processor):
    """Hands rows on; those with an even value a thousand seconds later, which lets nobody else be late."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            second = int(row.at.timestamp() - START.timestamp())
            yield Row(key=key[0], ended=at(second + (1000 if row.value % 2 == 0 else 0)), n=row.value)


class CountedByTheTime(Processor):
    """Counts what has ended, and tells it ten seconds after the last end."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint, last bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, last = self.count.get() or (0, 0)
        if last:
            self.handle.deleteTimer(last)
        for row in rows:
            n, last = n + row.n, max(last, milliseconds(row.ended) + 10_000)
        self.count.update((n, last))
        self.handle.registerTimer(last)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n, last = self.count.get()
        self.count.clear()
        yield Row(key=key[0], n=n, last=(last - milliseconds(START)) // 1000)


class TimersOfTimers(Processor):
    """Timers set others that are due already, and the time that they have themselves; what is listed meanwhile."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(milliseconds(row.at))
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        before = sorted(self.handle.listTimers())
        self.handle.registerTimer(time)
        if time % 1000 == 0:
            self.handle.registerTimer(time + 1)
        listed = [before, sorted(self.handle.listTimers())]
        yield Row(
            key=key[0],
            at=time - milliseconds(START),
            listed=str([[timer - milliseconds(START) for timer in timers] for timers in listed]),
        )


class TimersDeleteTimers(Processor):
    """The first timer that fires deletes the others, of which some are due as well."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            for offset in (0, 1, 2, 200_000):
                self.handle.registerTimer(milliseconds(row.at) + offset)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        yield Row(key=key[0], at=expiredTimerInfo.getExpiryTimeInMs() - milliseconds(START))


class Address(NamedTuple):
    """A struct as programs write it."""

    road: int
    city: str


class ManyKinds(Processor):
    """Keeps values of many kinds, and tells as what they come back."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", f"{_KINDS}, counts map<string, array<int>>")
        self.values = handle.getListState("values", _KINDS)
        self.map = handle.getMapState("map", "day date", _KINDS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        told = [repr(self.value.get()), repr(list(self.values.get())), repr(list(self.map.iterator()))]
        row = next(rows)
        kept = (
            row.at.replace(tzinfo=None),
            row.at,
            [Address(1, "Rome"), {"road": 2, "city": None}],
            date(2026, 1, 1),
            Decimal("1.50"),
            [np.int64(row.value)],
        )
        self.value.update((*kept, {"n": [np.int32(1), 2]}))
        self.values.put([kept])
        self.values.appendValue(kept)
        self.map.updateValue((date(2026, 1, row.value),), kept)
        yield Row(key=key[0], told=" ".join(told))


class LastInstants(Processor):
    """Compares the instants of frames with one in state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getValueState("last", "at timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        newest = max(frame["at"].max() for frame in rows)
        before = self.last.get()[0] if self.last.exists() else datetime.fromtimestamp(0)
        if before < newest:
            self.last.update((newest,))
        yield pd.DataFrame({"key": key, "newer": [bool(before < newest)], "kind": type(self.last.get()[0]).__name__})


_KINDS = (
    "local timestamp, at timestamp, addresses array<struct<road: int, city: string>>, day date, sum decimal(10,2), "
    "numbers array<bigint>"
)
_TOLD = "key string, value string, values string, map string, exist string"
_ENDED = "key string, n bigint, ended timestamp"
_COUNTED = Program(CountedByTheTime, "key string, n bigint, last bigint", [], "EventTime")
EXPIRING = Program(
    Expiring,
    _TOLD,
    [[("a", 0, 1), ("b", 0, 2)], [("a", 0, 3)], [("a", 0, 9), ("b", 0, 9)], [("a", 0, 9)], [("a", 0, 4)]],
    mode="ProcessingTime",
    pauses=[0, 25, 25, 25, 0],
)
"""Those in which time passes live for so long that a batch of Spark may begin ten seconds late."""
FURTHER = {
    "expiring": EXPIRING,
    "renewed": Program(
        Renewed,
        _TOLD,
        [
            [("a", 0, 0), ("b", 0, 0)],
            [("a", 0, 2), ("b", 0, 4)],
            [("a", 0, 1), ("b", 0, 1)],
            [("a", 0, 4)],
            [("a", 0, 1), ("b", 0, 1)],
        ],
        mode="ProcessingTime",
        pauses=[0, 25, 25, 5, 25],
    ),
    "forgetful": Program(
        Forgetful,
        "key string, kind string, told string",
        [[("a", 0, 1), ("a", 0, 2)], [("a", 0, 2), ("a", 0, 3)], [("a", 0, 2), ("a", 0, 4)], [("a", 0, 5)]],
        mode="ProcessingTime",
        pauses=[0, 25, 25, 25],
    ),
    "long lived": Program(
        LongLived, "key string, total bigint, values string, map string", PLAIN, mode="ProcessingTime"
    ),
    "sums of frames": Program(
        SumsOfFrames,
        "key string, total bigint, first timestamp",
        PLAIN,
        initial=[("a", 100), ("b", 5), ("a", 20)],
        in_pandas=True,
    ),
    "large rows of frames": Program(LargeRowsOfFrames, f"{INPUT}, columns string, kinds string", PLAIN, in_pandas=True),
    "sessions of frames": Program(
        SessionsOfFrames, "key string, n bigint, ends bigint", TIMED, "EventTime", delay="5 seconds", in_pandas=True
    ),
    "timers of timers": Program(
        TimersOfTimers, "key string, at bigint, listed string", TIMED, "EventTime", delay="0 seconds"
    ),
    "timers delete timers": Program(TimersDeleteTimers, "key string, at bigint", TIMED, "EventTime", delay="0 seconds"),
    "many kinds": Program(ManyKinds, "key string, told string", [[("a", 0, 1)], [("a", 5, 2)], [("a", 9, 3)]]),
    "last instants": Program(LastInstants, "key string, newer boolean, kind string", TIMED, in_pandas=True),
    "sessions are counted": Program(
        TimedSessions, _ENDED, TIMED, "EventTime", delay="5 seconds", ended="ended", then=_COUNTED
    ),
    "postponed rows are counted": Program(
        Postponed, _ENDED, TIMED, "EventTime", delay="5 seconds", ended="ended", then=_COUNTED
    ),
}
