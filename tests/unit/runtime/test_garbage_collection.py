"""What tasks leave in cycles is collected, and what they leave alive is not looked at after each of them."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Types
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.operator import OperatorSubtask
from holdfast.runtime.task import worker_process
from holdfast.runtime.task.worker_process import collect_after_task, collect_between_barriers, collect_young
from holdfast.testing.real_time_runner import RealTimeProgram


class Knot:
    """Something that only the cyclic collector can free."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    worker_process._next_full_collection = 0.0
    yield
    gc.unfreeze()


def test_live_objects_are_not_scanned_again_after_the_next_task() -> None:
    kept = [Knot() for _ in range(10_000)]
    assert len(gc.get_objects()) > len(kept)
    collect_after_task()
    assert len(gc.get_objects()) < 1_000
    collect_after_task()
    assert len(gc.get_objects()) < 1_000
    assert all(knot.self is knot for knot in kept)


def test_a_cycle_of_the_task_is_collected_at_its_end() -> None:
    collect_after_task()
    left = weakref.ref(Knot())
    collect_after_task()
    assert left() is None


def test_a_cycle_that_outlived_its_task_is_collected_by_a_full_collection() -> None:
    collect_after_task()
    knot = Knot()
    collect_after_task()
    frozen = weakref.ref(knot)
    del knot
    collect_after_task()
    assert frozen() is not None
    worker_process._next_full_collection = 0.0
    collect_after_task()
    assert frozen() is None


def test_looking_at_everything_takes_a_two_hundredth_of_the_time() -> None:
    began = time.monotonic()
    collect_after_task()
    took = time.monotonic() - began
    assert 0 < worker_process._next_full_collection - time.monotonic() <= 200 * took


# Real-time tasks, which do not end


def test_a_cycle_that_outlived_young_collections_is_collected_at_the_next_barrier() -> None:
    collect_between_barriers()
    knot = Knot()
    collect_young()
    left = weakref.ref(knot)
    del knot
    collect_young()
    assert left() is not None
    collect_between_barriers()
    assert left() is None


def test_a_cycle_that_outlived_a_barrier_is_collected_by_a_full_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    collect_between_barriers()
    knot = Knot()
    collect_between_barriers()
    old = weakref.ref(knot)
    del knot
    collect_between_barriers()
    assert old() is not None
    now = time.monotonic() + 3600
    monkeypatch.setattr(worker_process.time, "monotonic", lambda: now)
    collect_between_barriers()
    assert old() is None


def test_of_a_task_in_real_time_nothing_is_left_but_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs between two barriers refers to itself; each checkpoint would leave some more of it."""
    alive: weakref.WeakSet[OperatorSubtask] = weakref.WeakSet()
    begin = OperatorSubtask.__init__

    def watched(subtask: OperatorSubtask, *arguments: Any) -> None:
        begin(subtask, *arguments)
        alive.add(subtask)

    monkeypatch.setattr(OperatorSubtask, "__init__", watched)
    program = RealTimeProgram()
    source = DataGeneratorSource(lambda n: n, rows_per_second=100).split_source()
    program.source("numbers", source, Types.LONG()).map(lambda n: n + 1, "bigint").for_each(lambda n: None).uid("out")
    client = JobClient(program.master(tmp_path, source_tasks=1))  # one task, as in a worker of Spark
    while client.get_job_status() is not JobStatus.RUNNING:
        time.sleep(0.01)
    for _ in range(10):
        client.trigger_checkpoint().result(60)
    assert 1 <= len(alive) <= 2
    client.stop()
    client.await_termination()
