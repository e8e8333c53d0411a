"""Measure the parts of an epoch: the operations at Holdfast's fault points, their syncs, and the jobs of Spark.

The driver and each Python worker call `watch`. Each process then writes a file with the duration of each operation that
a fault point guards, and of its syncs. `jobs_of` gets the start and the end of jobs and tasks from Spark when a run
ends. `table` returns the medians of all parts.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from holdfast.kernel import fault
from holdfast.runtime import epoch

SYNC = " sync"
ACCEPT = "accept"
PARTS = {
    "metadata.write": "document",
    "pointer.write": "pointer",
    "sink.commit": "a commit, at the same time as the next epoch",
}
PARTS_OF_TASKS = {
    "run.write": "of it: writing a run",
    f"run.write{SYNC}": "of it: the sync of the run",
    "sink.stage": "of it: staging output",
}
_NEWEST = 200

_now = threading.local()
_watched: list[str] = []


def watch(directory: str) -> None:
    """Notes from now on, in a file of this process; once is enough."""
    if _watched:
        return
    _watched.append(directory)
    guard, sync, accept = fault.point, os.fsync, epoch.check_epoch

    @contextmanager
    def timed_point(name: str) -> Iterator[None]:
        _now.synced = 0.0
        with _timed(name), guard(name):
            yield
        if _now.synced:
            _note(name + SYNC, _now.synced)

    def timed_sync(descriptor: int) -> None:
        began = time.perf_counter()
        sync(descriptor)
        _now.synced = getattr(_now, "synced", 0.0) + time.perf_counter() - began

    def timed_accept(*arguments: Any) -> Any:
        with _timed(ACCEPT):
            return accept(*arguments)

    fault.point, os.fsync, epoch.check_epoch = timed_point, timed_sync, timed_accept  # type: ignore[assignment]


@contextmanager
def _timed(part: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    _note(part, time.perf_counter() - began)


def _note(part: str, seconds: float) -> None:
    line = json.dumps({"part": part, "at": time.time(), "ms": 1000 * seconds}) + "\n"
    with Path(_watched[0], str(os.getpid())).open("a") as file:
        file.write(line)


def noted(directory: Path) -> list[dict[str, Any]]:
    """What all processes have noted."""
    return [json.loads(line) for path in directory.iterdir() for line in path.read_text().splitlines()]


def jobs_of(session: SparkSession) -> list[dict[str, float]]:
    """When the newest jobs of Spark were submitted, began their first task, and ended; seconds since 1970."""
    store = session.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)  # newest first
    found = []
    for at in range(min(_NEWEST, jobs.size())):
        job = jobs.apply(at)
        launched = [time for time in map(_launched(store), _items(job.stageIds())) if time is not None]
        times = (_seconds(job.submissionTime()), min(launched, default=None), _seconds(job.completionTime()))
        if None not in times:
            found.append(dict(zip(("submitted", "launched", "ended"), times, strict=True)))
    return found


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def _launched(store: Any) -> Any:
    def of(stage: int) -> float | None:
        try:
            return _seconds(store.lastStageAttempt(stage).firstTaskLaunchedTime())
        except Py4JJavaError:  # it was skipped
            return None

    return of


def _seconds(option: Any) -> float | None:
    return option.get().getTime() / 1000 if option.isDefined() else None


def table(told: Sequence[dict[str, Any]], parts: Sequence[dict[str, Any]], begun: float) -> dict[str, float]:
    """Medians of the parts of the epochs that began after a time, in milliseconds, in their order.

    Args:
        told: What the engine has told: `spark` and `holdfast`, each with the time `at` that it was told; when an epoch
            `began`; and `job`, as `jobs_of` returns it.
        parts: What was noted.
        begun: The time.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    for said in told:
        if "spark" in said and said["at"] >= begun:
            spark = defaultdict(float, said["spark"])
            found["input: finding new files or offsets"].append(spark["latestOffset"] + spark["getBatch"])
            found["Spark's logs"].append(spark["walCommit"] + spark["commitOffsets"])
            found["Spark's planning"].append(spark["queryPlanning"])
            found["the whole batch"].append(spark["triggerExecution"])
    began = sorted(at for said in told if (at := said.get("began", 0.0)) >= begun)
    jobs = sorted((said["job"] for said in told if "job" in said), key=lambda job: job["submitted"])
    accepted = sorted(part["at"] for part in parts if part["part"] == ACCEPT)
    for start, end in zip(began, [*began[1:], float("inf")], strict=True):
        job = next((job for job in jobs if start <= job["submitted"] < end), None)
        if job is None:
            continue
        found["planning the job, including calls into the JVM"].append(1000 * (job["submitted"] - start))
        found["starting the job, until its first task starts"].append(1000 * (job["launched"] - job["submitted"]))
        found["tasks"].append(1000 * (job["ended"] - job["launched"]))
        barrier = next((at for at in accepted if job["ended"] <= at < end), None)
        if barrier is not None:
            found["barrier: reading and comparing the reports of tasks"].append(1000 * (barrier - job["ended"]))
    for said in told:
        if "holdfast" in said and said["at"] >= begun:
            found["of it: functions and state"].append(said["holdfast"]["function_ms"])
            found["waiting for commits"].append(said["holdfast"]["commit_ms"])
    for name, title in {**PARTS_OF_TASKS, **PARTS}.items():
        found[title] += [part["ms"] for part in parts if part["part"] == name and part["at"] >= begun]
    return {title: round(statistics.median(found[title]), 1) for title in ORDER if found[title]}


ORDER = (
    "input: finding new files or offsets",
    "Spark's logs",
    "Spark's planning",
    "planning the job, including calls into the JVM",
    "starting the job, until its first task starts",
    "tasks",
    "of it: functions and state",
    *PARTS_OF_TASKS.values(),
    "barrier: reading and comparing the reports of tasks",
    PARTS["metadata.write"],
    PARTS["pointer.write"],
    "waiting for commits",
    PARTS["sink.commit"],
    "the whole batch",
)
