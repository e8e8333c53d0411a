"""A running job is looked at and controlled over REST, and by the commands that use it."""

from __future__ import annotations

import json
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import StorageError
from holdfast.kernel.clock import ManualClock
from holdfast.rest.client import RestClient, RestError
from holdfast.rest.operation import AsyncOperations
from holdfast.runtime.engine import EpochDriver, Outcome
from holdfast.runtime.job_master import JobMaster
from holdfast.runtime.status import JobStatus
from holdfast.testing.epoch_runner import LocalEngine, LocalInput, run_job

SECONDS = 30.0


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, word: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if word == "poison":
            raise ValueError("this word is poison")
        self.count.update(self.count.value() + 1)
        yield word


class GrowingEngine(LocalEngine):
    """Runs an epoch for each batch of words that somebody appends to its inputs, until the job is stopped."""

    def drive(self, driver: EpochDriver) -> Outcome:
        while not driver.stopping:
            driver.tick_if_due()
            if self._next < len(self.inputs):
                driver.process(LocalInput(self._next, self.inputs[self._next], False))
                self._next += 1
            else:
                driver.wait(0.02)
        return Outcome.STOPPED


class Running:
    """A job that counts words, in a thread of its own."""

    def __init__(self, root: Path, name: str = "words", **options: Any) -> None:
        env = StreamExecutionEnvironment.get_execution_environment()
        words = env.from_collection([], "string").uid("words")
        counted = words.key_by(lambda word: word, "string").process(Count(), output_type="string").uid("count")
        counted.for_each_epoch(lambda rows, epoch: None).uid("sink")
        self.engine = GrowingEngine([{"words": ["kelp", "rock"]}])
        self.master: JobMaster = run_job(
            env.get_stream_graph(),
            root / "checkpoints",
            self.engine,
            {"restart-strategy.type": "none"} | options,
            name=name,
        )
        self.directory = Path(self.master.job.directory.path)
        self.failure: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        until(lambda: self.master.statistics.create_snapshot().counts.completed >= 1)

    def _run(self) -> None:
        try:
            self.master.run()
        except Exception as error:
            self.failure = error

    @property
    def client(self) -> RestClient:
        return RestClient.find(self.master.job.directory)

    def say(self, *words: str) -> None:
        self.engine.inputs.append({"words": list(words)})

    def end(self) -> None:
        self.master.control.stop()
        self.thread.join(SECONDS)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.end()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def holdfast(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(call: Callable[[], Any]) -> RestError:
    with pytest.raises(RestError) as caught:
        call()
    return caught.value


def test_the_address_is_for_the_user_alone_and_goes_with_the_job(job: Running) -> None:
    (address,) = (job.directory / "rest").iterdir()
    assert stat.S_IMODE(address.stat().st_mode) == 0o600
    assert job.client.get("status") == {"status": "RUNNING"}
    job.end()
    assert not (job.directory / "rest").exists()
    assert "No process runs the job" in str(refused(lambda: job.client))


def test_nobody_is_answered_without_the_token(job: Running) -> None:
    url = f"{job.client.address.url}/jobs"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, headers=headers))
        assert caught.value.code == 401
        assert "token" in json.loads(caught.value.read())["errors"][0]
    shown = {"Authorization": f"Bearer {job.client.address.bearer}"}
    for path in ("/jobs", "/v1/jobs"):
        with urllib.request.urlopen(urllib.request.Request(job.client.address.url + path, headers=shown)) as answer:
            assert json.load(answer) == {"jobs": [{"id": job.client.job_id, "status": "RUNNING"}]}


def test_the_checkpoints_of_a_job_are_described_as_in_flink(job: Running) -> None:
    job.say("kelp", "sand")
    until(lambda: job.client.get("checkpoints")["counts"]["completed"] == 2)
    overview = job.client.get("checkpoints")
    assert overview["counts"] == {"restored": 0, "total": 2, "in_progress": 0, "completed": 2, "failed": 0}
    assert [entry["id"] for entry in overview["history"]] == [2, 1]
    assert overview["latest"]["completed"]["external_path"] == str(job.directory / "chk-2")
    sizes = overview["summary"]["state_size"]
    assert 0 < sizes["min"] <= sizes["p50"] <= sizes["p999"] <= sizes["max"]
    details = job.client.get("checkpoints/details/2")
    assert details["num_subtasks"] == details["num_acknowledged_subtasks"] > 2
    assert details["tasks"]["count"]["num_subtasks"] == 2
    subtasks = job.client.get("checkpoints/details/2/subtasks/count")
    assert [subtask["status"] for subtask in subtasks["subtasks"]] == ["completed", "completed"]
    assert sum(subtask["checkpointed_size"] for subtask in subtasks["subtasks"]) == details["checkpointed_size"] > 0
    assert job.client.get("checkpoints/config")["mode"] == "exactly_once"
    assert refused(lambda: job.client.get("checkpoints/details/99")).status == 404
    assert refused(lambda: job.client.get("checkpoints/details/2/subtasks/other")).status == 404


def test_what_is_known_of_checkpoints_survives_a_restart_and_tells_of_it(tmp_path: Path) -> None:
    restarts = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": 0}
    running = Running(tmp_path, **restarts)
    running.engine._interceptor = fails_once()
    running.say("rock")
    until(lambda: running.client.get("checkpoints")["counts"]["completed"] == 2)
    overview = running.client.get("checkpoints")
    assert overview["counts"]["restored"] == 1
    assert overview["latest"]["restored"]["id"] == 1
    (failure,) = running.client.get("exceptions")["exceptionHistory"]["entries"]
    assert "the disk is on fire" in failure["stacktrace"]
    (address,) = (running.directory / "rest").iterdir()
    assert address.name.startswith("0000000000000000002-"), "the file of the first term is gone"
    running.end()


def fails_once() -> Callable[[int, int], None]:
    left = ["the disk is on fire"]

    def interceptor(level: int, partition: int) -> None:
        if left:
            raise StorageError(left.pop())

    return interceptor


def test_a_checkpoint_and_a_savepoint_are_asked_for_and_their_outcome_is_fetched(job: Running, tmp_path: Path) -> None:
    asked = job.client.post("checkpoints", {"triggerId": "abc"})
    assert asked == job.client.post("checkpoints", {"triggerId": "abc"}) == {"request-id": "abc"}
    assert job.client.result_of("checkpoints", "abc", SECONDS) == {"checkpointId": 2}
    request = job.client.post("savepoints", {"target-directory": str(tmp_path / "savepoints")})
    path = Path(job.client.result_of("savepoints", request["request-id"], SECONDS)["location"])
    assert (path / "_metadata").exists()
    assert job.client.get("checkpoints")["latest"]["savepoint"]["external_path"] == str(path)
    assert "There is no savepoint operation" in str(refused(lambda: job.client.get("savepoints/other")))
    no_place = refused(lambda: job.client.post("savepoints", {}))
    assert no_place.status == 400
    assert "execution.checkpointing.savepoint-dir" in str(no_place)
    for wrong in ({"checkpointType": "INCREMENTAL"}, {"checkpointType": "FULL"}, {"triggerId": "../x"}):
        assert refused(lambda wrong=wrong: job.client.post("checkpoints", wrong)).status == 400
    assert refused(lambda: job.client.post("savepoints", {"formatType": "CANONICAL"})).status == 400


def test_a_savepoint_that_fails_says_why_and_the_job_goes_on(job: Running, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    request = job.client.post("savepoints", {"target-directory": str(tmp_path / "file")})
    assert "file" in str(refused(lambda: job.client.result_of("savepoints", request["request-id"], SECONDS)))
    job.say("sand")
    until(lambda: job.client.get("checkpoints")["latest"]["completed"]["id"] >= 3)


def test_the_commands_take_a_savepoint_rescale_list_and_stop(job: Running, tmp_path: Path) -> None:
    root, target = tmp_path / "checkpoints", tmp_path / "savepoints"
    taken = holdfast("savepoint", job.directory, target, "--json")
    assert taken.exit_code == 0, taken.output
    assert (Path(json.loads(taken.stdout)["path"]) / "_metadata").exists()
    assert holdfast("rescale", root, "3").stdout == "count  3\n"
    assert holdfast("rescale", root, "count=1").stdout == "count  1\n"
    assert job.master.control.parallelism == {"count": 1}
    wrong = holdfast("rescale", root, "other=1")
    assert wrong.exit_code == 1
    assert "no operator with state has the uid 'other'" in wrong.stderr
    (row,) = map(json.loads, holdfast("list", root, "--json").stdout.splitlines())
    assert (row["name"], row["status"], row["url"]) == ("words", "RUNNING", job.client.address.url)
    stopped = holdfast("stop", root, "-p", target)
    assert stopped.exit_code == 0, stopped.output
    job.thread.join(SECONDS)
    assert job.master.status is JobStatus.SUSPENDED
    assert holdfast("list", root, "--json").stdout == ""
    assert json.loads(holdfast("list", "-a", root, "--json").stdout)["status"] == "SUSPENDED"
    gone = holdfast("savepoint", root, target)
    assert gone.exit_code == 1
    assert "No process runs the job" in gone.stderr


def test_one_of_several_jobs_is_chosen_by_name_and_cancelled_for_good(tmp_path: Path) -> None:
    first, second = Running(tmp_path, "first"), Running(tmp_path, "second")
    root = tmp_path / "checkpoints"
    assert "Choose one with --job" in holdfast("cancel", root).stderr
    assert holdfast("cancel", root, "--job", "second").exit_code == 0
    second.thread.join(SECONDS)
    assert second.master.status is JobStatus.CANCELED
    assert first.client.get("status") == {"status": "RUNNING"}
    statuses = {
        json.loads(line)["name"]: json.loads(line)["status"]
        for line in holdfast("list", "-a", root, "--json").stdout.splitlines()
    }
    assert statuses == {"first": "RUNNING", "second": "CANCELED"}
    first.end()


def test_other_paths_and_modes_are_refused_with_flinks_codes(job: Running) -> None:
    client = job.client
    assert refused(lambda: client._send("PATCH", "?mode=stop", None, 5)).status == 308
    assert refused(lambda: client._send("PATCH", "?mode=other", None, 5)).status == 400
    assert refused(lambda: client._send("PATCH", "rescaling?parallelism=3", None, 5)).status == 503
    assert refused(lambda: client._send("POST", "status", {}, 5)).status == 405
    assert refused(lambda: client.get("nonsense")).status == 404
    client.job_id = "0" * 32
    assert refused(lambda: client.get("status")).status == 404


def test_the_details_of_a_job_name_its_operators_and_hide_its_secrets(tmp_path: Path) -> None:
    running = Running(tmp_path, **{"queryable-state.token": "sesame", "pipeline.global-job-parameters.day": "monday"})
    details = running.client.get()
    assert (details["name"], details["state"]) == ("words", "RUNNING")
    assert [vertex["id"] for vertex in details["vertices"]] == ["count", "sink"]
    assert details["timestamps"]["RUNNING"] >= details["start-time"]
    config = running.client.get("config")["execution-config"]["user-config"]
    assert config["pipeline.global-job-parameters.day"] == "monday"
    assert "sesame" not in json.dumps(config)
    running.end()


def test_a_job_may_do_without_rest(tmp_path: Path) -> None:
    running = Running(tmp_path, **{"rest.enable": False})
    assert not (running.directory / "rest").exists()
    running.end()


def test_an_outcome_is_forgotten_after_its_time_and_never_before_the_end() -> None:
    clock = ManualClock()
    operations = AsyncOperations(clock, 1000)
    future: Future[int] = Future()
    operations.start("a", lambda: future)
    operations.start("a", lambda: pytest.fail("started twice"))
    clock.advance(5000)
    assert operations.status("a", lambda n: {"n": n}) == {"status": {"id": "IN_PROGRESS"}, "operation": None}
    future.set_result(7)
    clock.advance(999)
    assert operations.status("a", lambda n: {"n": n}) == {"status": {"id": "COMPLETED"}, "operation": {"n": 7}}
    clock.advance(1)
    assert operations.status("a", lambda n: {"n": n}) is None
