"""A source of the program's own raises in the driver: the job restarts, as after a failure of a task. No JVM."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import WatermarkStrategy
from holdfast.datastream.connectors.base import RealTimeSource, SourceReader, SourceSplit, SplitEnumerator
from holdfast.errors import JobExecutionError
from holdfast.runtime.function.bounded_sources import SequentialReader
from holdfast.runtime.function.source import BoundedEnumerator
from holdfast.runtime.job.engine import EngineError
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.real_time_runner import RealTimeProgram
from holdfast.types.types import Types
from tests.unit.runtime.realtime.test_real_time_jobs import RESTARTS, Rows

LEFT: dict[str, int] = {}
"""How often each method still raises."""


def raise_if_told(method: str) -> None:
    if LEFT.get(method, 0) > 0:
        LEFT[method] -= 1
        raise RuntimeError(f"the gateway has no {method}")


class Enumerator(SplitEnumerator):
    """Finds one split of two at each call."""

    discovery_seconds = 0.0

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
    def read(self, split_id: str, state: Any) -> tuple[Sequence[Any], Any]:
        time.sleep(0.1)  # some checkpoints complete before the end
        return [f"{split_id}{state}"], state + 1 if state < 2 else None


class Gateway(RealTimeSource):
    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        raise_if_told("create_enumerator")
        return Enumerator(position)

    def create_reader(self, task: int) -> SourceReader:
        return Reader()

    def element_type(self) -> Any:
        return Types.STRING()

    def is_bounded(self) -> bool:
        return True


METHODS = ["create_enumerator", "discover", "is_exhausted", "snapshot", "split_finished"]


def run(tmp_path: Path, found: Rows, **options: str) -> None:
    program = RealTimeProgram()
    stream = program.from_source(Gateway(), WatermarkStrategy.no_watermarks(), "gateway").uid("gateway")
    stream.for_each_epoch(found.write).uid("out")
    JobClient(
        program.master(tmp_path, {**RESTARTS, "execution.checkpointing.interval": "50 ms", **options})
    ).await_termination()


@pytest.mark.parametrize("method", METHODS)
def test_an_enumerator_that_raises_once_restarts_the_job(tmp_path: Path, method: str) -> None:
    LEFT.clear()
    LEFT[method] = 1
    found = Rows()
    run(tmp_path, found)
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


def test_one_that_does_not_return_splits_ends_the_job_and_is_named(tmp_path: Path) -> None:
    LEFT.clear()
    LEFT["nothing"] = 1
    with pytest.raises(JobExecutionError) as failed:
        run(tmp_path, Rows(), **{"restart-strategy.fixed-delay.attempts": "2"})
    assert "the enumerator of input 'gateway' failed while it looked for splits: TypeError" in str(failed.value)
