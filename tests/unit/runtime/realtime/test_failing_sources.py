"""A source of the program's own raises in the driver: the job restarts, as after a failure of a task. No JVM."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest

from holdfast.common import WatermarkStrategy
from holdfast.datastream.connectors.base import RealTimeSource, SourceReader, SourceSplit, SplitEnumerator
from holdfast.errors import ConfigurationError, EngineError, JobExecutionError, UserFunctionError
from holdfast.runtime.function.bounded_sources import SequentialReader
from holdfast.runtime.function.source import BoundedEnumerator
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.realtime.task_meter import TaskMeter
from holdfast.storage.delayed_writes import DelayedWrites
from holdfast.testing.real_time_runner import RealTimeProgram
from holdfast.types.types import Types
from tests.unit.runtime.realtime.test_real_time_jobs import RESTARTS, Rows

LEFT: dict[str, int] = {}
"""How often each method still raises."""
AWAY = "a server that is away"
"""Set in `LEFT` if what a method raises is the error of a connection."""


def raise_if_told(method: str, kind: type[Exception] = RuntimeError) -> None:
    if LEFT.get(method, 0) > 0:
        LEFT[method] -= 1
        raise (URLError if AWAY in LEFT else kind)(f"the gateway has no {method}")


class Enumerator(SplitEnumerator):
    """Finds one split of two at each call."""

    @property
    def discovery_seconds(self) -> float:
        raise_if_told("discovery_seconds")
        return 0.0

    @property
    def is_begun(self) -> bool:
        raise_if_told("is_begun")
        return False

    def __init__(self, position: Any) -> None:
        self._left = ["a", "b"] if position is None else position["left"]
        self._restored = BoundedEnumerator({} if position is None else position["splits"])
        self._calls = 0

    def discover(self) -> Sequence[SourceSplit]:
        restored = self._restored.discover()
        if self._calls:
            raise_if_told("discover")
            if LEFT.get("nothing", 0) > 0:
                return None  # type: ignore[return-value]
        self._calls += 1
        return [*restored, *[SourceSplit(self._left.pop(0), 0) for _ in self._left[:1]]]

    def is_exhausted(self) -> bool:
        raise_if_told("is_exhausted")
        return not self._left

    def snapshot(self, splits: Mapping[str, Any]) -> Any:
        raise_if_told("snapshot")
        return {"left": list(self._left), "splits": dict(splits)}

    def split_finished(self, split_id: str) -> None:
        raise_if_told("split_finished")


class Reader(SequentialReader):
    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        raise_if_told("add_splits")
        super().add_splits(splits)

    has_paused = False

    def poll(self) -> Any:
        raise_if_told("poll")
        raise_if_told(WRONG_ANSWER, TypeError)
        self.has_paused = not self.has_paused
        return None if self.has_paused else super().poll()

    def read(self, split_id: str, state: Any) -> tuple[Sequence[Any], Any]:
        time.sleep(0.1)  # some checkpoints complete before the end
        return [f"{split_id}{state}"], state + 1 if state < 2 else None

    def snapshot(self) -> Mapping[str, Any]:
        raise_if_told("snapshot of reader")
        return super().snapshot()

    @property
    def has_splits(self) -> bool:
        raise_if_told("has_splits")
        return super().has_splits

    @property
    def ended_splits(self) -> Collection[str]:
        raise_if_told("ended_splits")
        return super().ended_splits

    @property
    def seconds_to_next(self) -> float | None:
        raise_if_told("seconds_to_next")
        return super().seconds_to_next

    @property
    def has_fetched(self) -> bool:
        raise_if_told("has_fetched")
        return super().has_fetched


class Gateway(RealTimeSource):
    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        raise_if_told("create_enumerator")
        return Enumerator(position)

    def create_reader(self, task: int) -> SourceReader:
        raise_if_told("create_reader")
        return Reader()

    def element_type(self) -> Any:
        return Types.STRING()

    def is_bounded(self) -> bool:
        return True


METHODS = [
    "create_enumerator",
    "discover",
    "discovery_seconds",
    "is_begun",
    "is_exhausted",
    "snapshot",
    "split_finished",
]
OF_READERS = [
    "create_reader",
    "add_splits",
    "poll",
    "snapshot of reader",
    "has_splits",
    "ended_splits",
    "seconds_to_next",
    "has_fetched",
]
WRONG_ANSWER = "list in its answer"


def run(tmp_path: Path, found: Rows, **options: str) -> None:
    program = RealTimeProgram()
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda _, __: 1).per_partition()
    stream = program.from_source(Gateway(), times, "gateway").uid("gateway")
    stream.for_each_epoch(found.write).uid("out")
    JobClient(
        program.master(tmp_path, {**RESTARTS, "execution.checkpointing.interval": "50 ms", **options})
    ).await_termination()


@pytest.mark.parametrize("method", [*METHODS, *OF_READERS, WRONG_ANSWER])
def test_a_method_that_raises_once_restarts_the_job(tmp_path: Path, method: str) -> None:
    LEFT.clear()
    LEFT[method] = 1
    found = Rows()
    run(tmp_path, found)
    assert sorted(row["value"] for row in found) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert LEFT[method] == 0


@pytest.mark.parametrize("method", ["discover", "create_reader", "poll"])
def test_the_job_waits_for_a_server_that_is_away(tmp_path: Path, method: str) -> None:
    LEFT.clear()
    LEFT.update({AWAY: 1, method: 12})
    found = Rows()
    run(tmp_path, found, **{"restart-strategy.fixed-delay.attempts": "20"})
    assert sorted(row["value"] for row in found) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert LEFT[method] == 0


@pytest.mark.parametrize("method", METHODS)
def test_one_that_always_raises_ends_the_job_and_is_named(tmp_path: Path, method: str) -> None:
    LEFT.clear()
    LEFT[method] = 1000
    with pytest.raises(JobExecutionError) as failed:
        run(tmp_path, Rows(), **{"restart-strategy.fixed-delay.attempts": "2"})
    cause = failed.value.__cause__
    assert isinstance(cause, EngineError)
    assert str(cause).startswith("the enumerator of input 'gateway' failed while it ")
    assert str(cause).endswith(f": RuntimeError: the gateway has no {method}")


@pytest.mark.parametrize("method", OF_READERS)
def test_a_reader_that_always_raises_ends_the_job_and_is_named(tmp_path: Path, method: str) -> None:
    LEFT.clear()
    LEFT[method] = 1000
    with pytest.raises(JobExecutionError) as failed:
        run(tmp_path, Rows(), **{"restart-strategy.fixed-delay.attempts": "2"})
    cause = failed.value.__cause__
    assert isinstance(cause, UserFunctionError)
    assert cause.headline.startswith("operator 'gateway' failed while ")
    assert cause.headline.endswith(f": RuntimeError: the gateway has no {method}")
    assert "raise_if_told" in cause.details


def test_one_that_does_not_return_splits_ends_the_job_and_is_named(tmp_path: Path) -> None:
    LEFT.clear()
    LEFT["nothing"] = 1
    with pytest.raises(JobExecutionError) as failed:
        run(tmp_path, Rows(), **{"restart-strategy.fixed-delay.attempts": "2"})
    assert "the enumerator of input 'gateway' failed while it looked for splits: TypeError" in str(failed.value)


class Careless(RealTimeSource):
    """Two splits; the class of its reader, and the splits and the snapshot of its enumerator are given."""

    def __init__(self, splits: Sequence[tuple[Any, Any]], reader: Any = None, more: Any = None) -> None:
        self.first, self.reader, self.more = splits, reader, more

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return CarelessEnumerator(self.first if position is None else position["splits"].items(), self.more)

    def create_reader(self, task: int) -> SourceReader:
        return (self.reader or InPlace)()

    def element_type(self) -> Any:
        return Types.STRING()

    def is_bounded(self) -> bool:
        return True


class CarelessEnumerator(SplitEnumerator):
    def __init__(self, splits: Any, more: Any) -> None:
        self._left, self._more = [SourceSplit(*split) for split in splits], more

    def discover(self) -> Sequence[SourceSplit]:
        found, self._left = self._left, []
        return found

    def is_exhausted(self) -> bool:
        return True

    def snapshot(self, splits: Mapping[str, Any]) -> Any:
        return {"splits": dict(splits), "more": self._more}


class InPlace(SourceReader):
    """Changes the states of its splits in place, and returns them as they are."""

    rows = 200

    def __init__(self) -> None:
        self._splits: dict[str, Any] = {}

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self._splits |= {split.split_id: split.state for split in splits}

    def poll(self) -> Any:
        time.sleep(0.002)
        for split_id, state in self._splits.items():
            if state["next"] < self.rows:
                state["next"] += 1
                return [f"{split_id}{state['next'] - 1}"]
        return None

    def snapshot(self) -> Mapping[str, Any]:
        states = {name: state if state["next"] < self.rows else None for name, state in self._splits.items()}
        self._splits = {name: state for name, state in states.items() if state is not None}
        return states

    @property
    def has_splits(self) -> bool:
        return any(state["next"] < self.rows for state in self._splits.values())


class WithSets(InPlace):
    def snapshot(self) -> Mapping[str, Any]:
        return {name: {**state, "seen": {1}} for name, state in self._splits.items()}


class Counting(InPlace):
    """Says what is pending, as a number of numpy or not at all."""

    @property
    def pending_records(self) -> Any:
        if not self._splits:
            raise RuntimeError("nothing is known")
        return np.int64(7)


class OfOthers(InPlace):
    def snapshot(self) -> Mapping[str, Any]:
        return {**super().snapshot(), "c": {"next": 1}}


class OneText(InPlace):
    def poll(self) -> Any:
        return "abc"


class OneObject(InPlace):
    def poll(self) -> Any:
        return {"value": "abc"}


class Generated(InPlace):
    def poll(self) -> Any:
        yield "abc"


TWO = [("a", {"next": 0}), ("b", {"next": 0})]


def test_a_position_is_that_of_the_barrier_however_long_its_snapshot_takes_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = DelayedWrites.make_all_durable

    def slowly(self: DelayedWrites, files: Any) -> None:
        time.sleep(0.1)
        durable(self, files)

    monkeypatch.setattr(DelayedWrites, "make_all_durable", slowly)
    failed = tmp_path / "failed"

    def fails_once(value: str) -> str:
        if value == "a150" and not failed.exists():
            failed.touch()
            raise RuntimeError("once")
        return value

    found = Rows()
    program = RealTimeProgram()
    stream = program.from_source(Careless(TWO), WatermarkStrategy.no_watermarks(), "own").uid("own")
    stream.map(fails_once, Types.STRING()).uid("map").for_each_epoch(found.write).uid("out")
    program.run(tmp_path / "checkpoints", RESTARTS)
    assert failed.exists()
    assert sorted(row["value"] for row in found) == sorted(f"{name}{n}" for name in "ab" for n in range(InPlace.rows))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Careless([("a", {1})]), "the enumerator of input 'own' returned splits with states that are no JSON: Object"),
        (Careless([("a", float("nan"))]), "the enumerator of input 'own' returned splits with states that are no JSON"),
        (Careless([("a", threading.Lock)]), "the enumerator of input 'own' returned splits with states that are no"),
        (Careless([(0, {"next": 0})]), "the enumerator of input 'own' returned the split 0 with the state"),
        (Careless([("a", None)]), "the enumerator of input 'own' returned the split 'a' with the state None"),
        (Careless(TWO, more={1}), "the enumerator of input 'own' took a snapshot of values that are no JSON"),
        (Careless(TWO, WithSets), "the reader of input 'own' returned states of its splits that are no JSON: Object"),
        (Careless(TWO, OfOthers), "the reader of input 'own' returned the state of the split 'c', which it was not"),
    ],
)
def test_a_position_that_cannot_be_kept_ends_the_job_and_is_named(tmp_path: Path, source: Careless, words: str) -> None:
    program = RealTimeProgram()
    stream = program.from_source(source, WatermarkStrategy.no_watermarks(), "own").uid("own")
    stream.for_each_epoch(lambda frame, epoch: None).uid("out")
    with pytest.raises(ConfigurationError) as failed:
        program.run(tmp_path, RESTARTS)
    assert str(failed.value).startswith(words)


@pytest.mark.parametrize("reader", [OneText, OneObject, Generated])
def test_a_poll_that_returns_no_list_ends_the_job_and_is_named(tmp_path: Path, reader: Any) -> None:
    found = Rows()
    program = RealTimeProgram()
    stream = program.from_source(Careless(TWO, reader), WatermarkStrategy.no_watermarks(), "own").uid("own")
    stream.for_each_epoch(found.write).uid("out")
    with pytest.raises(
        ConfigurationError, match=r"the reader of input 'own' returned .*: its poll.. must return a list"
    ):
        program.run(tmp_path, RESTARTS)
    assert len(found) == 0


def test_a_reader_that_cannot_say_what_is_pending_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskMeter, "is_due", True)
    found = Rows()
    program = RealTimeProgram()
    stream = program.from_source(Careless(TWO, Counting), WatermarkStrategy.no_watermarks(), "own").uid("own")
    stream.for_each_epoch(found.write).uid("out")
    assert program.run(tmp_path) is JobStatus.FINISHED
    assert len(found) == 2 * InPlace.rows
