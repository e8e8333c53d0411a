"""Chains of Python stages that run at once on Spark: order, failures, slots, and what they leave behind.

They run in a process of their own, whose context has the settings and the slots of real time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import ConfigurationError, EngineError, HoldfastError
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.exchange.layout import SCHEMA
from holdfast.spark import realtime, session
from holdfast.spark.realtime import PipelinedJob, PipelinedStage, check_real_time
from tests.stories.cluster import is_gone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

SLOTS = 8
LONG = 500.0
Batches = Iterable[pa.RecordBatch]
Messages = Iterator[pa.RecordBatch]
Run = Callable[..., Any]

_spark: Any = None


def start_session() -> None:
    global _spark
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.master": f"local[{SLOTS}]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "execution.trigger": "real-time",
    }
    _spark = session.get_or_create(Configuration(options))
    _spark.sparkContext.setLogLevel("OFF")


def call(function: Run, *arguments: Any) -> Any:
    return function(_spark, *arguments)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Calls a function of this module with the session, in the process that has it."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, start_session) as process:
        yield lambda function, *arguments: process.submit(call, function, *arguments).result()


# Stages. The functions inside travel to the workers.


def messages(*pairs: tuple[int, bytes]) -> pa.RecordBatch:
    targets, contents = [target for target, _ in pairs], [content for _, content in pairs]
    return pa.RecordBatch.from_arrays(
        [pa.array(contents, pa.binary()), pa.array(targets, pa.int32()), pa.array([0] * len(pairs), pa.int32())],
        schema=SCHEMA,
    )


def task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def contents(batches: Batches) -> Iterator[bytes]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def wait_for(condition: Callable[[], bool], seconds: float = LONG) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("a condition of the test never became true")
        time.sleep(0.01)


def numbers(count: int) -> Callable[[Batches], Messages]:
    """Returns a source whose message says which task sent it, which number it has, and when."""

    def source(batches: Batches) -> Messages:
        task = task_number()
        for number in range(count):
            yield messages((number % 3, json.dumps([task, number, time.time()]).encode()))

    return source


def forward(batches: Batches) -> Messages:
    for content in contents(batches):
        yield messages((json.loads(content)[0], content))


def written(folder: Path) -> Callable[[Batches], Messages]:
    """Returns a last stage that writes what it got, and how long that was on its way."""

    def last(batches: Batches) -> Messages:
        found = [(*json.loads(content)[:2], time.time() - json.loads(content)[2]) for content in contents(batches)]
        (folder / f"{task_number()}.json").write_text(json.dumps(found))
        yield from ()

    return last


def noted(folder: Path, run: Callable[[Batches], None]) -> Callable[[Batches], Messages]:
    """Returns a stage whose process id is a file in the folder while it runs, or until its process is killed."""

    def stage(batches: Batches) -> Messages:
        file = folder / str(os.getpid())
        file.touch()
        try:
            run(batches)
        finally:
            file.rename(file.with_suffix(".ended"))
        yield from ()

    return stage


def blocked(folder: Path) -> Callable[[Batches], Messages]:
    return noted(folder, lambda _: time.sleep(LONG))


def reading(folder: Path) -> Callable[[Batches], Messages]:
    def read(batches: Batches) -> None:
        for _ in batches:
            pass

    return noted(folder, read)


def job_of(spark: Any, *stages: tuple[Callable[[Batches], Messages], int]) -> PipelinedJob:
    return PipelinedJob(spark, [PipelinedStage(function, tasks) for function, tasks in stages], "job 'kelp'")


def started(folder: Path) -> int:
    """Returns the number of tasks that have started in the folder, whether or not they still run."""
    return len(list(folder.iterdir()))


def running(folder: Path) -> list[int]:
    """Returns the processes of the tasks that run."""
    return [int(path.name) for path in folder.iterdir() if not path.suffix and not is_gone(int(path.name))]


# Tests. Each is a function that has the session, and the test of what it returns.


def pass_numbers(spark: Any, folder: Path) -> str:
    job = job_of(spark, (numbers(500), 2), (forward, 3), (written(folder), 2))
    assert not job.is_running
    job.start()
    assert job.is_running
    assert job.wait(LONG)
    assert not job.is_running
    return repr(job.failure)


def test_messages_pass_three_stages_in_their_order(run: Run, tmp_path: Path) -> None:
    assert run(pass_numbers, tmp_path) == "None"
    latencies = []
    for task in range(2):
        found = json.loads((tmp_path / f"{task}.json").read_text())
        assert {source for source, _, _ in found} == {task}
        for way in range(3):
            order = [number for _, number, _ in found if number % 3 == way]
            assert order == list(range(way, 500, 3))
        latencies += [seconds for _, _, seconds in found]
    latencies.sort()
    print(f"p50 {1000 * latencies[500]:.1f} ms, p99 {1000 * latencies[990]:.1f} ms")


def send_one(spark: Any, folder: Path) -> str:
    arrived = folder / "arrived"

    def source(batches: Batches) -> Messages:
        yield messages((0, b"one"))
        wait_for(arrived.exists)

    def middle(batches: Batches) -> Messages:
        for content in contents(batches):
            yield messages((0, content))

    def last(batches: Batches) -> Messages:
        for content in contents(batches):
            assert content == b"one"
            arrived.touch()
        yield from ()

    job = job_of(spark, (source, 1), (middle, 1), (last, 1))
    job.start()
    assert job.wait(2 * LONG)
    return repr(job.failure)


def test_a_message_that_nothing_follows_arrives(run: Run, tmp_path: Path) -> None:
    assert run(send_one, tmp_path) == "None"


def run_alone(spark: Any, folder: Path) -> str:
    job = job_of(spark, (noted(folder, lambda _: None), 2))
    job.start()
    assert job.wait(LONG)
    return repr(job.failure)


def write_parent(spark: Any, folder: Path) -> str:
    def write(_: None) -> None:
        (folder / "parent").write_bytes(Path(f"/proc/{os.getppid()}/cmdline").read_bytes())

    job = job_of(spark, (noted(folder, write), 1))
    job.start()
    assert job.wait(LONG)
    return repr(job.failure)


def test_workers_are_forked_from_a_process_that_has_imported_the_package(run: Run, tmp_path: Path) -> None:
    assert run(write_parent, tmp_path) == "None"
    assert b"holdfast.spark.daemon" in (tmp_path / "parent").read_bytes()


def test_a_single_stage_runs(run: Run, tmp_path: Path) -> None:
    assert run(run_alone, tmp_path) == "None"
    assert started(tmp_path) == 2
    assert not running(tmp_path)


def fail_in_the_middle(spark: Any, folder: Path) -> tuple[HoldfastError | None, float]:
    failed = folder.parent / "failed"

    def middle(batches: Batches) -> Messages:
        for number, content in enumerate(contents(batches)):
            if number == 5 and task_number() == 1:
                failed.write_text(str(time.time()))
                raise ConfigurationError("the reef is closed")
            yield messages((0, content))

    def source(batches: Batches) -> Messages:
        for number in range(100):
            yield messages((number % 2, b"fish"))
        time.sleep(LONG)

    job = job_of(spark, (source, 2), (middle, 2), (reading(folder), 2))
    job.start()
    assert job.wait(LONG)
    return job.failure, time.time() - float(failed.read_text())


def test_the_error_of_the_task_that_failed_is_the_error_of_the_job(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    for _ in range(3):
        failure, seconds = run(fail_in_the_middle, tmp_path / "pids")
        print(f"known after {seconds:.1f} s")
        assert type(failure) is ConfigurationError
        assert str(failure) == "the reef is closed"


def kill_a_worker(spark: Any, folder: Path) -> tuple[HoldfastError | None, float]:
    job = job_of(spark, (blocked(folder), 1), (reading(folder), 2), (reading(folder), 2))
    job.start()
    wait_for(lambda: started(folder) == 5)
    killed = time.monotonic()
    os.kill(running(folder)[0], signal.SIGKILL)
    assert job.wait(LONG)
    seconds = time.monotonic() - killed
    job.cancel()
    wait_for(lambda: not running(folder))
    return job.failure, seconds


def test_a_killed_worker_is_a_failure_at_once(run: Run, tmp_path: Path) -> None:
    failure, seconds = run(kill_a_worker, tmp_path)
    print(f"known after {seconds:.1f} s: {failure}")
    assert type(failure) is EngineError
    assert "a Python worker of Spark ended without an error" in str(failure)
    assert seconds < LONG


def cancel_blocked(spark: Any, folder: Path) -> tuple[str, float, float]:
    job = job_of(spark, (blocked(folder), 2), (reading(folder), 2), (blocked(folder), 2))
    job.start()
    wait_for(lambda: started(folder) == 6)
    began = time.monotonic()
    assert job.cancel()
    ended = time.monotonic()
    assert not job.is_running
    wait_for(lambda: not running(folder))
    return repr(job.failure), ended - began, time.monotonic() - began


def test_a_cancelled_job_leaves_no_worker(run: Run, tmp_path: Path) -> None:
    failure, job_seconds, worker_seconds = run(cancel_blocked, tmp_path)
    print(f"job ended after {job_seconds:.1f} s, workers after {worker_seconds:.1f} s")
    assert failure == "None"


def cancel_at_once(spark: Any, folder: Path) -> str:
    job = job_of(spark, (blocked(folder), 1), (reading(folder), 1))
    job.start()
    assert job.cancel()
    assert job.cancel()
    return repr(job.failure)


def test_a_job_may_be_cancelled_while_it_starts(run: Run, tmp_path: Path) -> None:
    assert run(cancel_at_once, tmp_path) == "None"


def need_more_slots(spark: Any, folder: Path) -> tuple[HoldfastError | None, str]:
    with pytest.raises(ConfigurationError) as refused:
        check_real_time(spark, [3, 3, 3])
    check_real_time(spark, [3, 3, 2])
    job = PipelinedJob(spark, [PipelinedStage(reading(folder), 3)] * 3, "job 'kelp'", slot_timeout=1.0)
    job.start()
    assert job.wait(LONG)
    return job.failure, str(refused.value)


def test_too_few_slots_are_refused_with_what_to_do(run: Run, tmp_path: Path) -> None:
    failure, refused = run(need_more_slots, tmp_path)
    assert refused == (
        "The job needs 9 slots at once, one for each task of its stages, and spark.master=local[8] has 8: use "
        "spark.master=local[9], or lower 'parallelism.default'."
    )
    assert type(failure) is ConfigurationError
    assert "needs 9 slots at once" in str(failure)
    assert "8 exist" in str(failure)
    assert "'parallelism.default'" in str(failure)


def wait_for_slots(spark: Any, folder: Path) -> tuple[bool, str]:
    (folder / "pids").mkdir()
    first = job_of(spark, (blocked(folder / "pids"), 3), (reading(folder / "pids"), 3))
    first.start()
    wait_for(lambda: started(folder / "pids") == 6)
    second = job_of(spark, (numbers(3), 2), (written(folder), 2))
    second.start()
    waited = not second.wait(1.0)
    first.cancel()
    assert second.wait(LONG)
    return waited, repr(second.failure)


def test_a_job_starts_when_there_are_slots(run: Run, tmp_path: Path) -> None:
    assert run(wait_for_slots, tmp_path) == (True, "None")


def run_two(spark: Any, folder: Path) -> tuple[list[str], list[int], dict[str, str]]:
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    gate = folder / "gate"

    def source(batches: Batches) -> Messages:
        task = task_number()
        yield messages((0, json.dumps([task, 0, time.time()]).encode()))
        wait_for(gate.exists)
        for number in range(1, 100):
            yield messages((0, json.dumps([task, number, time.time()]).encode()))

    def rows_of_batches(batches: Batches) -> Messages:
        for batch in batches:
            yield pa.record_batch({"n": pa.array([batch.num_rows], pa.int64())})

    jobs = [job_of(spark, (source, 1), (written(folder / name), 1)) for name in "ab"]
    for job in jobs:
        job.start()
    found: list[int] = []
    other = threading.Thread(
        target=lambda: found.extend(
            row.n for row in spark.range(0, 300, 1, 1).mapInArrow(rows_of_batches, "n long").collect()
        )
    )
    other.start()
    other.join(LONG)
    assert all(job.is_running for job in jobs)
    gate.touch()
    assert all(job.wait(LONG) for job in jobs)
    settings = {key: spark.conf.get(key) for key in realtime._JOB_SETTINGS}
    return [repr(job.failure) for job in jobs], found, settings


def test_two_jobs_and_a_query_run_side_by_side_with_their_own_settings(run: Run, tmp_path: Path) -> None:
    failures, rows, settings = run(run_two, tmp_path)
    assert failures == ["None", "None"]
    for name in "ab":
        found = json.loads((tmp_path / name / "0.json").read_text())
        assert [number for _, number, _ in found] == list(range(100))
    assert rows == [300]
    assert settings["spark.sql.execution.arrow.maxRecordsPerBatch"] == "10000"
    assert settings["spark.sql.adaptive.enabled"] == "true"
