"""What an operator of a real-time job sees: where time goes, what waits, how long a barrier and a record take."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import schemathesis

from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, OutputTag
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.errors import HoldfastError
from holdfast.rest.client import RestClient, RestError
from holdfast.rest.metric_samples import collect_samples
from holdfast.runtime.exchange.real_time_metrics import Latency, OperatorRates, RealTimeMetrics, TaskTime
from holdfast.runtime.function.source import SourceReader, SourceSplit, SplitEnumerator, SplitSource
from holdfast.runtime.job.control import JobStatus, SnapshotRequest
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.metric_catalog import ALL
from holdfast.runtime.realtime.task_meter import TaskMeter
from holdfast.testing.real_time_runner import RealTimeProgram

TASK = "flink_taskmanager_job_task_"
OPERATOR = f"{TASK}operator_"
LATENCY = "flink_taskmanager_job_latency_source_id_operator_id_operator_subtask_index_latency"
SECONDS = 60.0


class Slow(KeyedProcessFunction):
    """Takes its time for each element."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        time.sleep(self.seconds)
        yield row.key, row.n


def program_of(seconds: float, per_second: int) -> RealTimeProgram:
    program = RealTimeProgram()
    source = DataGeneratorSource(lambda n: n, rows_per_second=per_second).split_source()
    numbers = program.source("numbers", source, Types.LONG()).map(lambda n: (n % 7, n), "key bigint, n bigint")
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.n)
    stamped = numbers.uid("keys").assign_timestamps_and_watermarks(times).uid("stamped")
    slow = stamped.key_by("key").process(Slow(seconds), "key bigint, n bigint").uid("slow")
    slow.for_each_epoch(lambda frame, epoch: None).uid("out")
    return program


@contextmanager
def running(program: RealTimeProgram, directory: Path, tasks: int = 2, **options: Any) -> Iterator[JobMaster]:
    master = program.master(directory, options, parallelism=tasks, source_tasks=tasks)
    client = JobClient(master)
    try:
        until(lambda: is_served(master))
        yield master
    finally:
        client.cancel().result()
        client.await_termination()


def is_served(master: JobMaster) -> bool:
    try:
        return RestClient.find(master.job.directory).is_alive()
    except RestError:
        return False


def until(condition: Any) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)
    return found


def live(master: JobMaster, uid: str) -> Any:
    """The last second of an operator or a source, as REST has it; None until it is known."""
    details = RestClient.find(master.job.directory).get("")
    known = {node["id"]: node for node in (*details["plan"]["nodes"], *details["vertices"])}
    return known.get(uid, {}).get("real-time")


@pytest.mark.parametrize("tasks", [1, 2], ids=["one worker", "a worker for each task"])
def test_behind_a_slow_stage_the_one_before_is_back_pressured(tmp_path: Path, tasks: int) -> None:
    with running(program_of(0.002, 5000), tmp_path, tasks) as master:
        slow = until(
            lambda: (found := live(master, "slow")) and found["busy"] > 700 and found["read-records"] and found
        )
        first = until(lambda: (found := live(master, "keys")) and found["back-pressured"] > 500 and found)
        assert live(master, "numbers")["back-pressured"] > 500, "the source runs in the same tasks"
        for times in (slow, first):
            assert times["busy"] + times["back-pressured"] + times["idle"] == 1000
        assert slow["back-pressured"] < 100, "behind it there is only a sink"
        assert 0 < slow["read-records"] < 1100, "two subtasks, 2 ms each"


def test_rest_calls_back_pressure_as_flink_does(tmp_path: Path) -> None:
    with running(program_of(0.002, 5000), tmp_path) as master:
        client = RestClient.find(master.job.directory)

        def pressure(uid: str) -> Any:
            return client.get(f"vertices/{uid}/backpressure")

        for uid in ("numbers", "keys"):
            found = until(lambda uid=uid: (told := pressure(uid)).get("backpressure-level") == "high" and told)
            assert found["status"] == "ok" and found["end-timestamp"] > 0
            assert max(one["ratio"] for one in found["subtasks"]) > 0.5
            for one in found["subtasks"]:
                assert one["ratio"] + one["busyRatio"] + one["idleRatio"] == pytest.approx(1)
        assert until(lambda: pressure("slow").get("backpressure-level") == "ok")
        with pytest.raises(RestError, match="no operator 'nobody'"):
            pressure("nobody")


def test_with_little_input_all_are_idle(tmp_path: Path) -> None:
    with running(program_of(0, 5), tmp_path) as master:
        for uid in ("numbers", "keys", "slow", "out"):
            until(lambda uid=uid: (found := live(master, uid)) and found["idle"] > 300)


def test_a_function_that_hangs_is_busy(tmp_path: Path) -> None:
    """Its task reports nothing any more."""
    program = RealTimeProgram()
    source = DataGeneratorSource(lambda n: n, rows_per_second=10).split_source()
    numbers = program.source("numbers", source, Types.LONG())
    numbers.map(HangingMap(), "bigint").uid("hanging").for_each_epoch(lambda frame, epoch: None).uid("out")
    with running(program, tmp_path) as master:
        until(lambda: live(master, "hanging"))
        HangingMap.hangs.set()
        try:
            nothing = {"busy": 1000, "read-records": 0, "write-records": 0}
            until(lambda: {name: live(master, "hanging")[name] for name in nothing} == nothing)
        finally:
            HangingMap.hangs.clear()


class HangingMap:
    """A map that hangs while `hangs` is set."""

    hangs = threading.Event()

    def __call__(self, n: int) -> int:
        while self.hangs.is_set():
            time.sleep(0.01)
        return n


class Uneven(SplitSource):
    """Two splits without an end; the reader of the second one takes 0.3 s for each poll, and so for each barrier."""

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return _TwoSplits()

    def create_reader(self, task: int) -> SourceReader:
        return _UnevenReader(0.3 if task else 0.001)


class _TwoSplits(SplitEnumerator):
    def __init__(self) -> None:
        self._left = [SourceSplit("0", 0), SourceSplit("1", 0)]

    def discover(self) -> list[SourceSplit]:
        found, self._left = self._left, []
        return found

    def is_exhausted(self) -> bool:
        return False

    def snapshot(self, splits: Any) -> Any:
        return dict(splits)


class _UnevenReader(SourceReader):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._splits: dict[str, int] = {}

    def add_splits(self, splits: Any) -> None:
        self._splits |= {split.split_id: split.state for split in splits}

    def poll(self) -> list[int]:
        time.sleep(self._seconds)
        self._splits = {name: n + 1 for name, n in self._splits.items()}
        return list(self._splits.values())

    def snapshot(self) -> Any:
        return dict(self._splits)

    @property
    def has_splits(self) -> bool:
        return bool(self._splits)


def test_a_barrier_that_waits_behind_elements_shows_as_start_delay(tmp_path: Path) -> None:
    program = program_of(0.12, 50)
    with running(program, tmp_path) as master:
        client = RestClient.find(master.job.directory)

        def late() -> Any:
            history = client.get("checkpoints")["history"]
            places = [
                f"checkpoints/details/{one['id']}/subtasks/slow" for one in history if one["status"] == "COMPLETED"
            ]
            delays = [one["start_delay"] for place in places for one in client.get(place)["subtasks"]]
            return max(delays, default=0) > 100

        until(late)
        name = f"{TASK}checkpointStartDelayNanos"

        def sampled() -> dict[str, float]:
            found = [sample for sample in collect_samples(master) if sample.name == name]
            return {sample.labels["operator_id"]: sample.value for sample in found}

        until(lambda: sampled().get("slow", 0) > 1e8)
        assert sampled()["keys"] >= 0


def test_a_late_producer_shows_as_alignment(tmp_path: Path) -> None:
    program = RealTimeProgram()
    rows = program.source("uneven", Uneven(), Types.LONG()).map(lambda n: (n % 7, n), "key bigint, n bigint")
    counted = rows.uid("keys").key_by("key").process(Slow(0), "key bigint, n bigint").uid("count")
    counted.for_each_epoch(lambda frame, epoch: None).uid("out")
    with running(program, tmp_path) as master:
        client = RestClient.find(master.job.directory)

        def late() -> Any:
            history = client.get("checkpoints")["history"]
            return next((one for one in history if one["alignment_duration"] > 100), None)

        checkpoint = until(late)
        until(lambda: any(epoch.real_time["alignment_ms"] > 100 for epoch in master.progress.recent))
        place = f"checkpoints/details/{checkpoint['id']}"
        assert client.get(place)["tasks"]["count"]["alignment_duration"] == checkpoint["alignment_duration"]
        by_subtask = client.get(f"{place}/subtasks/count")["subtasks"]
        assert max(one["alignment"]["duration"] for one in by_subtask) == checkpoint["alignment_duration"]
        assert {one["alignment"]["duration"] for one in client.get(f"{place}/subtasks/keys")["subtasks"]} == {0}, (
            "a source has no producers"
        )
        until(lambda: any(one["real-time"] for one in client.get("vertices/count")["subtasks"]))


def test_subtasks_are_known_before_their_first_barrier_and_after_a_rescale(tmp_path: Path) -> None:
    options: dict[str, Any] = {"execution.checkpointing.interval": "1 h"}
    with running(program_of(0, 200), tmp_path, **options) as master:
        client = RestClient.find(master.job.directory)
        for subtasks in (2, 3):
            found = until(lambda n=subtasks: len(one := client.get("vertices/slow")["subtasks"]) == n and one)
            assert [one["subtask"] for one in found] == list(range(subtasks))
            assert all(one["real-time"]["idle"] > 0 and one["epochs"] == 0 for one in found)
            master.control.rescale({"": 3}).result(SECONDS)


def test_the_lag_of_watermarks_does_not_wait_for_a_barrier(tmp_path: Path) -> None:
    options: dict[str, Any] = {"execution.checkpointing.interval": "1 h"}
    with running(program_of(0, 200), tmp_path, **options) as master:
        master.control.request(SnapshotRequest()).result(SECONDS)
        name = f"{OPERATOR}currentOutputWatermark", "slow"
        before = until(lambda: samples(master).get(name))
        until(lambda: samples(master)[name] > before + 300)
        assert master.metrics.numbers.epochs == 1


def samples(master: JobMaster) -> dict[tuple[str, str], float]:
    """The greatest value of each metric by operator."""
    found: dict[tuple[str, str], float] = {}
    for one in collect_samples(master):
        key = one.name, one.labels.get("operator_id", "")
        found[key] = max(one.value, found.get(key, one.value))
    return found


def quantiles_of(master: Any) -> Sequence[float]:
    """The quantiles of latency that the first task of the slow stage has sent last."""
    tasks = master.job.engine.task_metrics().items()
    found = [task for (_, partition), task in tasks if "slow" in task.operators and partition == 0]
    return found[0].latencies["numbers"].quantiles if found and "numbers" in found[0].latencies else ()


def test_latency_markers_are_measured_behind_the_elements_and_no_function_sees_them(tmp_path: Path) -> None:
    with running(program_of(0.002, 100), tmp_path, **{"metrics.latency.interval": "20 ms"}) as master:
        # A task that has been silent for some seconds has no metrics for the moment.
        seen = [samples(master)]
        while any(seen[-1].get((f"{LATENCY}_count", uid), 0) <= 20 for uid in ("keys", "slow", "out")):
            seen.append(samples(master))
            time.sleep(0.05)
        found = seen[-1]
        assert 2 < found[LATENCY, "slow"] < 10_000
        until(lambda: quantiles_of(master))
        quantiles = quantiles_of(master)
        assert list(quantiles) == sorted(quantiles)
        read = found["flink_taskmanager_job_task_operator_numRecordsIn", "slow"]
        assert read == found["flink_taskmanager_job_task_operator_numRecordsIn", "keys"]


def test_there_are_no_markers_without_the_option(tmp_path: Path) -> None:
    with running(program_of(0, 100), tmp_path) as master:
        until(lambda: live(master, "slow"))
        time.sleep(0.5)
        assert not [name for name, _ in samples(master) if name.startswith(LATENCY)]


def test_quantiles_of_no_markers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"metrics\.latency\.history-size is 0: it must be 1 or more"):
        program_of(0, 100).run(tmp_path, {"metrics.latency.history-size": 0})


class Dealing(KeyedProcessFunction):
    """Emits each element, and four times to a side output that a sink reads."""

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        yield row.key, row.n
        for _ in range(4):
            yield ASIDE, row.n


ASIDE = OutputTag("aside", Types.LONG())


def test_side_outputs_count_as_emitted_elements(tmp_path: Path) -> None:
    program = RealTimeProgram()
    source = DataGeneratorSource(lambda n: n, rows_per_second=500).split_source()
    numbers = program.source("numbers", source, Types.LONG()).map(lambda n: (n % 7, n), "key bigint, n bigint")
    dealt = numbers.key_by("key").process(Dealing(), "key bigint, n bigint").uid("deal")
    dealt.for_each_epoch(lambda frame, epoch: None).uid("out")
    dealt.get_side_output(ASIDE).for_each_epoch(lambda frame, epoch: None).uid("aside")
    with running(program, tmp_path) as master:
        rates = until(lambda: (found := live(master, "deal")) and found["read-records"] > 50 and found)
        assert rates["write-records"] == pytest.approx(5 * rates["read-records"], rel=0.01)
        until(lambda: samples(master).get((f"{OPERATOR}numRecordsIn", "deal"), 0) > 50)
        found = samples(master)
        assert found[f"{OPERATOR}numRecordsOut", "deal"] == 5 * found[f"{OPERATOR}numRecordsIn", "deal"]


def test_each_declared_metric_of_real_time_is_emitted(tmp_path: Path) -> None:
    declared = {entry.name for entry in ALL if entry.help.startswith("Real time:")}
    assert len(declared) == 12
    with running(program_of(0, 200), tmp_path, **{"metrics.latency.interval": "50 ms"}) as master:
        # A task that has been silent for some seconds has no metrics for the moment.
        wanted = {*((name, "slow") for name in declared), (f"{OPERATOR}numRecordsOutPerSecond", "numbers")}
        found: dict[tuple[str, str], float] = {}
        while not wanted <= found.keys():
            found |= samples(master)
            time.sleep(0.05)
        assert found[f"{OPERATOR}numRecordsInPerSecond", "slow"] > 20
        assert found[f"{OPERATOR}numRecordsOutPerSecond", "numbers"] > 20
        assert found[f"{OPERATOR}currentInputWatermark", "slow"] > 0
        assert 0 < found["holdfast_operator_checkpoint_sync_seconds", "slow"] < 10


def test_the_answers_of_rest_are_as_the_openapi_document_says(tmp_path: Path) -> None:
    with running(program_of(0, 200), tmp_path) as master:
        until(lambda: live(master, "slow"))
        until(lambda: len(master.progress.recent) > 2 and master.progress.recent[-1].real_time["operators"])
        client = RestClient.find(master.job.directory)
        shown = {"Authorization": f"Bearer {client.address.bearer_token}"}
        document = schemathesis.openapi.from_url(f"{client.address.url}/openapi.json", headers=shown)
        newest = client.get("checkpoints")["latest"]["completed"]["id"]
        own = {"jobid": str(master.job.job_id), "vertexid": "slow", "checkpointid": str(newest)}
        for path in (
            "/jobs/{jobid}",
            "/jobs/{jobid}/epochs",
            "/jobs/{jobid}/vertices/{vertexid}",
            "/jobs/{jobid}/vertices/{vertexid}/backpressure",
            "/jobs/{jobid}/log",
            "/jobs/{jobid}/checkpoints",
            "/jobs/{jobid}/checkpoints/details/{checkpointid}",
            "/jobs/{jobid}/checkpoints/details/{checkpointid}/subtasks/{vertexid}",
        ):
            used = {name: value for name, value in own.items() if f"{{{name}}}" in path}
            case = document[path]["GET"].Case(path_parameters=used)
            case.validate_response(case.call(headers=shown))


def test_the_line_of_an_epoch_names_the_operator_that_is_busy_most(tmp_path: Path) -> None:
    with running(program_of(0.002, 5000), tmp_path) as master:
        until(lambda: master.progress.recent and "slow is busy" in master.progress.recent[-1].line())


class Moving:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_time_in_which_a_task_does_not_wait_is_busy() -> None:
    clock = Moving()
    meter = TaskMeter(128, clock)

    for seconds, is_back_pressured in ((0.5, False), (1.0, True)):
        clock.now += seconds
        meter.add_wait(seconds, is_back_pressured=is_back_pressured)
    clock.now += 0.5
    assert meter.is_due
    meter.count_read("rows", 30)
    meter.add_latency("rows", 4.0)
    metrics = meter.report({}, {"rows": 7}, 12)
    assert metrics == RealTimeMetrics(
        TaskTime(250, 500, 250), {"rows": OperatorRates(0.0, 15.0, None, 7)}, {"rows": Latency(1, (4.0,) * 6)}, 6.0
    )
    assert RealTimeMetrics.from_json(metrics.to_json()) == metrics
    clock.now += 1
    second = meter.report({}, {"rows": 7}, 15)
    assert (second.time, second.messages_out) == (TaskTime(1000, 0, 0), 3.0)


def test_a_job_that_has_ended_has_no_metrics_of_tasks(tmp_path: Path) -> None:
    program = RealTimeProgram()
    program.from_collection([1, 2], "bigint").uid("rows").for_each_epoch(lambda frame, epoch: None).uid("out")
    master = program.master(tmp_path)
    assert master.run() is JobStatus.FINISHED
    assert master.job.engine.task_metrics() == {}
