"""A running job is looked at and controlled over REST, and by the commands that use it."""

from __future__ import annotations

import json
import re
import socket
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError, StorageError
from holdfast.kernel.clock import ManualClock
from holdfast.rest.checkpoint_api import AsyncOperations
from holdfast.rest.client import RestClient
from holdfast.rest.http import Request
from holdfast.rest.job_api import JobApi
from holdfast.runtime.job.control import JobStatus
from tests.stories.served import SECONDS, Running, holdfast, refused, until


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.end()


def test_the_address_file_is_private_and_ends_with_the_job(job: Running) -> None:
    (address,) = (job.directory / "rest").iterdir()
    assert stat.S_IMODE(address.stat().st_mode) == 0o600
    assert job.client.get("status") == {"status": "RUNNING"}
    job.end()
    assert not (job.directory / "rest").exists()
    assert "No process runs the job" in str(refused(lambda: job.client))


def test_a_job_listens_on_the_loopback_only(job: Running) -> None:
    port = int(job.client.address.url.rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port), SECONDS).close()
    for elsewhere in ("127.0.0.2", "::1"):  # who listens on all addresses listens on these, too
        with pytest.raises(OSError):
            socket.create_connection((elsewhere, port), SECONDS)


def test_the_address_says_which_token_requests_show_and_which_one_fences(job: Running) -> None:
    (address,) = (job.directory / "rest").iterdir()
    said = json.loads(address.read_text())
    assert said.keys() == {"url", "bearer_token", "host", "pid", "fencing_token", "job_id"}
    assert said["fencing_token"] == int(address.name.partition("-")[0])
    shown = {"Authorization": f"Bearer {said['bearer_token']}"}
    with urllib.request.urlopen(urllib.request.Request(f"{said['url']}/jobs", headers=shown)) as answer:
        assert answer.status == 200


def test_probes_need_no_token_and_return_nothing_else(job: Running) -> None:
    def asked(path: str, host: str = "10.1.2.3:8081", method: str = "GET") -> tuple[int, Any]:
        request = urllib.request.Request(f"{job.client.address.url}{path}", headers={"Host": host}, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    assert asked("/health/live") == (200, {"status": "alive"})
    assert asked("/health/ready") == (200, {"status": "ready"})
    for path, method in (("/jobs", "GET"), ("/health", "GET"), ("/health/ready/../../jobs", "GET")):
        assert asked(path, "localhost", method)[0] == 401
    assert asked("/health/live", "localhost", "POST")[0] == 401
    assert asked("/health/live/", "evil.example")[0] == 421
    job.master._status = JobStatus.RESTARTING
    assert asked("/health/ready") == (503, {"errors": ["The job is RESTARTING."]})
    assert asked("/health/live")[0] == 200
    job.master._status = JobStatus.RUNNING


def test_a_job_that_began_before_the_tokens_were_told_apart_by_name_is_reached(job: Running) -> None:
    (address,) = (job.directory / "rest").iterdir()
    said = json.loads(address.read_text())
    said["bearer"], said["token"] = said.pop("bearer_token"), said.pop("fencing_token")
    address.write_text(json.dumps(said))
    assert job.client.get("status") == {"status": "RUNNING"}


@pytest.mark.parametrize("content", ["[]", "{", '{"url": "http://127.0.0.1:1"}'])
def test_what_is_no_address_is_named(job: Running, content: str) -> None:
    (address,) = (job.directory / "rest").iterdir()
    address.write_text(content)
    with pytest.raises(HoldfastError, match="is not the address of a job"):
        job.client.get("status")


def test_requests_without_the_token_are_rejected(job: Running) -> None:
    url = f"{job.client.address.url}/jobs"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, headers=headers))
        assert caught.value.code == 401
        assert "token" in json.loads(caught.value.read())["errors"][0]
    shown = {"Authorization": f"Bearer {job.client.address.bearer_token}"}
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
    details = running.client.get()
    assert (details["restarts"], details["tries-in-a-row"]) == (1, 0), "a checkpoint has completed since"
    assert details["last-failure"] == "StorageError: the disk is on fire"
    (address,) = (running.directory / "rest").iterdir()
    assert address.name.startswith("0000000000000000002-"), "the file of the first term is gone"
    running.end()


def test_a_job_that_restarts_again_and_again_shows_how_often_and_why(tmp_path: Path) -> None:
    delay = {f"restart-strategy.exponential-delay.{name}": "10 ms" for name in ("initial-backoff", "max-backoff")}
    running = Running(tmp_path, **{"restart-strategy.type": "exponential-delay"}, **delay)

    burning = threading.Event()
    burning.set()

    def always(stage: int, partition: int) -> None:
        if burning.is_set():
            raise StorageError("the disk is on fire\nand here is a stack trace")

    running.engine._interceptor = always
    running.say("rock")
    until(lambda: running.client.get()["tries-in-a-row"] >= 3)
    details = running.client.get()
    assert details["restarts"] == details["tries-in-a-row"] >= 3
    assert details["last-failure"] == "StorageError: the disk is on fire"
    [metric] = running.client.get("metrics?get=triesInARow")
    assert int(metric["value"]) >= 3
    listed = holdfast("list", running.directory)
    assert re.search(r"(RESTARTING|RUNNING|CREATED) \(\d+ failed\)", listed.output), listed.output
    as_json = json.loads(holdfast("list", running.directory, "--json").output)
    assert as_json["tries_in_a_row"] >= 3
    assert as_json["last_failure"] == "StorageError: the disk is on fire"
    burning.clear()
    until(lambda: running.client.get()["tries-in-a-row"] == 0)
    running.end()


def fails_once() -> Callable[[int, int], None]:
    left = ["the disk is on fire"]

    def interceptor(stage: int, partition: int) -> None:
        if left:
            raise StorageError(left.pop())

    return interceptor


def test_a_checkpoint_and_a_savepoint_are_asked_for_and_their_outcome_is_fetched(job: Running, tmp_path: Path) -> None:
    asked = job.client.post("checkpoints", {"triggerId": "abc"})
    assert asked == job.client.post("checkpoints", {"triggerId": "abc"}) == {"request-id": "abc"}
    assert job.client.wait_for_result("checkpoints", "abc", SECONDS) == {"checkpointId": 2}
    request = job.client.post("savepoints", {"target-directory": str(tmp_path / "savepoints")})
    path = Path(job.client.wait_for_result("savepoints", request["request-id"], SECONDS)["location"])
    assert (path / "_metadata").exists()
    assert job.client.get("checkpoints")["latest"]["savepoint"]["external_path"] == str(path)
    assert "There is no savepoint operation" in str(refused(lambda: job.client.get("savepoints/other")))
    no_place = refused(lambda: job.client.post("savepoints", {}))
    assert no_place.status == 400
    assert "execution.checkpointing.savepoint-dir" in str(no_place)
    job.client.post("checkpoints", {"checkpointType": "INCREMENTAL", "triggerId": "next"})
    assert job.client.wait_for_result("checkpoints", "next", SECONDS)["checkpointId"] > 2, "all of them are"
    for wrong in ({"checkpointType": "OTHER"}, {"checkpointType": "FULL"}, {"triggerId": "../x"}):
        assert refused(lambda wrong=wrong: job.client.post("checkpoints", wrong)).status == 400


def test_misspelt_fields_and_wrong_types_are_rejected(job: Running, tmp_path: Path) -> None:
    target = {"target-directory": str(tmp_path / "savepoints")}
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("stop", target | {"drian": True}, "'drian' is unknown"),
        ("stop", target | {"drain": "false"}, "drain is true or false, not 'false'"),
        ("stop", {"targetDirectory": ["/"]}, "targetDirectory is a string"),
        ("savepoints", target | {"formatType": "AVRO"}, "CANONICAL, NATIVE, not 'AVRO'"),
        ("savepoints", target | {"cancel-job": 1}, "cancel-job is true or false"),
        ("savepoints", {"target-directory": " "}, "target-directory is a string"),
        ("checkpoints", {"checkpointType": ["FULL"]}, "checkpointType is one of"),
    ]
    for path, body, why in wrong:
        error = refused(lambda path=path, body=body: job.client.post(path, body))  # type: ignore[misc]
        assert error.status == 400, (path, body)
        assert why in str(error)
    job.say("sand")
    until(lambda: job.client.get("checkpoints")["counts"]["completed"] == 2)
    assert not (tmp_path / "savepoints").exists()


def test_a_body_in_chunks_is_refused_and_not_passed_over(job: Running) -> None:
    shown = f"Host: localhost\r\nAuthorization: Bearer {job.client.address.bearer_token}\r\n"
    head = f"POST /jobs/{job.client.job_id}/stop HTTP/1.1\r\n{shown}"
    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\nf\r\n{{'drain': true}}\r\n0\r\n\r\n".encode()
    port = int(job.client.address.url.rpartition(":")[2])
    wanted = {chunked: b" 411 ", b"NONSENSE\r\n\r\n": b'{"errors": ["', b"BREW /jobs HTTP/1.1\r\n\r\n": b" 501 "}
    for raw, part in wanted.items():
        with socket.create_connection(("127.0.0.1", port), SECONDS) as plain:
            plain.sendall(raw)
            answer = b""
            while b"]}" not in answer:
                answer += plain.recv(65536)
        assert part in answer
        assert b'{"errors": ["' in answer
    assert job.client.get("status") == {"status": "RUNNING"}


def test_a_savepoint_that_fails_says_why_and_the_job_goes_on(job: Running, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    request = job.client.post("savepoints", {"target-directory": str(tmp_path / "file")})
    assert "file" in str(refused(lambda: job.client.wait_for_result("savepoints", request["request-id"], SECONDS)))
    again = {"target-directory": str(tmp_path / "other"), "triggerId": request["request-id"]}
    assert job.client.post("savepoints", again) == request, "the same id is answered, and nothing is done"
    assert not (tmp_path / "other").exists()
    job.say("sand")
    until(lambda: job.client.get("checkpoints")["latest"]["completed"]["id"] >= 3)


def test_the_commands_take_a_savepoint_rescale_list_and_stop(job: Running, tmp_path: Path) -> None:
    root, target = tmp_path / "checkpoints", tmp_path / "savepoints"
    taken = holdfast("savepoint", job.directory, target, "--json")
    assert taken.exit_code == 0, taken.output
    assert (Path(json.loads(taken.stdout)["path"]) / "_metadata").exists()
    checkpointed = holdfast("checkpoint", root, "--json")
    assert checkpointed.exit_code == 0, checkpointed.output
    newest = json.loads(checkpointed.stdout)["checkpoint_id"]
    assert newest == job.client.get("checkpoints")["latest"]["completed"]["id"]
    assert holdfast("rescale", root, "3").stdout == "count  3\n"
    assert holdfast("rescale", root, "count=1").stdout == "count  1\n"
    assert job.master.control.parallelism == {"count": 1}
    wrong = holdfast("rescale", root, "other=1")
    assert wrong.exit_code == 1
    assert "No operator with state has the uid 'other'" in wrong.stderr
    (row,) = map(json.loads, holdfast("list", root, "--json").stdout.splitlines())
    assert (row["name"], row["status"], row["url"]) == ("words", "RUNNING", job.client.address.url)
    stopped = holdfast("stop", root, "--savepointPath", target)
    assert stopped.exit_code == 0, stopped.output
    job.thread.join(SECONDS)
    assert job.master.status is JobStatus.SUSPENDED
    assert holdfast("list", root, "--json").stdout == ""
    nothing = holdfast("list", "--running", root)
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "Show all jobs with -a" in nothing.stderr
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
    assert refused(lambda: client.get("exceptions?maxExceptions=-1")).status == 400
    assert refused(lambda: client.get("exceptions?failureLabelFilter=a:b")).status == 400
    assert refused(lambda: client.get("checkpoints/details/" + "9" * 5000)).status == 404
    client.job_id = "0" * 32
    assert refused(lambda: client.get("status")).status == 404


def test_what_has_no_meaning_on_spark_is_answered_with_the_reason(job: Running) -> None:
    wanted = {
        "GET accumulators": "have no accumulators",
        "PATCH clientHeartbeat": "No client is attached",
        "POST coordinators/count": "no coordinators",
        "GET vertices/count/accumulators": "Spark runs the tasks",
        "GET vertices/count/watermarks": "Spark runs the tasks",
    }
    for target, reason in wanted.items():
        method, path = target.split()
        error = refused(lambda method=method, path=path: job.client._send(method, path, {}, SECONDS))  # type: ignore[misc]
        assert (error.status, reason in str(error)) == (501, True), target
    shown = {"Authorization": f"Bearer {job.client.address.bearer_token}"}
    for method, path in (("GET", "/taskmanagers"), ("GET", "/jars"), ("POST", "/jars/upload"), ("DELETE", "/cluster")):
        with pytest.raises(urllib.error.HTTPError) as caught:
            url = job.client.address.url + path
            urllib.request.urlopen(urllib.request.Request(url, headers=shown, method=method))
        assert caught.value.code == 501
        assert "is not served" in json.loads(caught.value.read())["errors"][0]
    assert job.client.get("status") == {"status": "RUNNING"}


def test_the_metrics_of_a_job_have_flinks_names(job: Running) -> None:
    names = [metric["id"] for metric in job.client.get("metrics")]
    assert {"numRestarts", "uptime", "lastCheckpointDuration", "numberOfCompletedCheckpoints"} <= set(names)
    job.say("kelp", "kelp")
    until(lambda: job.client.get("checkpoints")["counts"]["completed"] == 2)
    wanted = "numberOfCompletedCheckpoints,lastCompletedCheckpointId,lastCheckpointExternalPath,nonsense,numRestarts"
    values = {metric["id"]: metric["value"] for metric in job.client.get(f"metrics?get={wanted}")}
    assert values == {
        "numberOfCompletedCheckpoints": "2",
        "lastCompletedCheckpointId": "2",
        "lastCheckpointExternalPath": str(job.directory / "chk-2"),
        "numRestarts": "0",
    }


def test_the_result_of_a_job_is_known_when_it_has_ended(tmp_path: Path) -> None:
    running = Running(tmp_path)
    assert running.client.get("execution-result") == {"status": {"id": "IN_PROGRESS"}}
    running.say("poison")
    running.thread.join(SECONDS)
    answer = JobApi(running.master).execution_result(Request({})).body
    assert isinstance(answer, dict)
    result = answer["job-execution-result"]
    assert (answer["status"], result["application-status"]) == ({"id": "COMPLETED"}, "FAILED")
    assert "this word is poison" in result["failure-cause"]["message"]


def test_the_rescales_of_a_job_are_remembered_with_what_was_refused(job: Running) -> None:
    assert job.client.get("rescales/overview")["latest"] == {"completed": None, "failed": None, "ignored": None}
    job.client.rescale({"count": 3})
    assert refused(lambda: job.client.rescale({"count": 1000})).status == 400
    job.client.rescale({"count": 1})
    history = job.client.get("rescales/history")["rescaleHistory"]
    changes = [
        (one["terminalState"], *[one["vertices"]["count"][f"{when}RescaleParallelism"] for when in ("pre", "post")])
        for one in history
    ]
    assert changes == [("COMPLETED", 3, 1), ("FAILED", 3, 3), ("COMPLETED", 2, 3)], "newest first"
    assert history[1]["vertices"]["count"]["desiredParallelism"] == 1000
    assert "max parallelism" in history[1]["terminatedReason"]
    overview = job.client.get("rescales/overview")
    assert overview["rescalesCounts"] == {"completed": 2, "failed": 1, "ignored": 0, "inProgress": 0}
    assert overview["latest"]["failed"] == history[1]
    assert job.client.get(f"rescales/details/{history[2]['rescaleUuid']}") == history[2]
    assert job.client.get("rescales/summary")["completedRescalesDurationStatsInMillis"]["max"] >= 0
    assert job.client.get("rescales/config") == {"rescaleHistoryMax": 16}
    assert refused(lambda: job.client.get("rescales/details/other")).status == 404


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


@pytest.mark.parametrize("kind", ["CANONICAL", "NATIVE", None])
def test_a_savepoint_of_either_format_is_written_described_and_deleted(
    job: Running, tmp_path: Path, kind: str | None
) -> None:
    asked = {"target-directory": str(tmp_path / "savepoints")} | ({} if kind is None else {"formatType": kind})
    request = job.client.post("savepoints", asked)
    path = Path(job.client.wait_for_result("savepoints", request["request-id"], SECONDS)["location"])
    latest = job.client.get("checkpoints")["latest"]["savepoint"]
    assert (latest["savepointFormat"], latest["external_path"]) == (kind or "CANONICAL", str(path))

    assert disposed(job, path) == {}
    assert list((tmp_path / "savepoints").iterdir()) == []
    assert disposed(job, path)["failure-cause"]["class"] == "NotExistError"
    checkpoint = job.client.get("checkpoints")["latest"]["completed"]["external_path"]
    assert "not a savepoint" in disposed(job, checkpoint)["failure-cause"]["message"]
    assert (Path(checkpoint) / "_metadata").exists()


def disposed(job: Running, path: object) -> Any:
    """What became of a disposal."""
    asked = send(job, "POST", "/savepoint-disposal", {"savepoint-path": str(path)})
    found: dict[str, Any] = {}

    def is_done() -> bool:
        found.update(send(job, "GET", f"/savepoint-disposal/{asked['request-id']}"))
        return bool(found["status"]["id"] == "COMPLETED")

    until(is_done)
    return found["operation"]


def send(job: Running, method: str, path: str, body: Any = None) -> Any:
    """A request to a path that is not below the job's."""
    data = None if body is None else json.dumps(body).encode()
    shown = {"Authorization": f"Bearer {job.client.address.bearer_token}"}
    request = urllib.request.Request(job.client.address.url + path, data, shown, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_a_disposal_needs_the_whole_path_and_an_unknown_one_is_404(job: Running) -> None:
    for body in ({}, {"savepoint-path": "savepoints/mine"}, {"savepoint-path": 7}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            send(job, "POST", "/savepoint-disposal", body)
        assert caught.value.code == 400
    with pytest.raises(urllib.error.HTTPError) as caught:
        send(job, "GET", "/savepoint-disposal/nobody")
    assert caught.value.code == 404


def test_the_commands_name_the_format_resolve_paths_where_they_are_typed_and_dispose(
    job: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    taken = holdfast("savepoint", job.directory, "mine", "-type", "native", "--json")
    assert taken.exit_code == 0, taken.output
    path = Path(json.loads(taken.stdout)["path"])
    assert path.parent == tmp_path / "here" / "mine"
    assert json.loads((path / "_metadata").read_text())["properties"]["format"] == "NATIVE"
    gone = holdfast("savepoint", "--dispose", path.relative_to(tmp_path / "here"))
    assert gone.exit_code == 0, gone.output
    assert not path.exists()
    assert holdfast("savepoint", "-d", job.directory / "chk-1").exit_code != 0
    assert holdfast("savepoint").exit_code == holdfast("savepoint", job.directory, "-d", path).exit_code == 2


def test_who_waits_for_a_savepoint_hears_that_the_job_has_failed_meanwhile(tmp_path: Path) -> None:
    running = Running(tmp_path)
    client, begun, may_fail = running.client, threading.Event(), threading.Event()

    def fail(stage: int, subtask: int) -> None:
        begun.set()
        may_fail.wait(SECONDS)
        raise StorageError("the disk is on fire")

    running.engine._interceptor = fail
    running.say("rock")
    assert begun.wait(SECONDS)
    trigger_id = client.post("savepoints", {"target-directory": str(tmp_path / "s")})["request-id"]
    may_fail.set()
    until(lambda: client.get(f"savepoints/{trigger_id}", timeout=SECONDS)["status"]["id"] == "COMPLETED")
    running.thread.join(SECONDS)
    assert isinstance(running.failure, HoldfastError)


def test_while_an_outcome_is_fetched_a_job_that_has_failed_says_so(tmp_path: Path) -> None:
    running = Running(tmp_path)
    client = running.client
    client.wait_for_result("checkpoints", client.post("checkpoints", {})["request-id"], SECONDS)
    client.post("checkpoints", {})  # nobody fetches what becomes of this one
    running.say("poison")
    until(lambda: client.get("status")["status"] == "FAILED")
    result = client.get("execution-result")["job-execution-result"]
    assert "this word is poison" in result["failure-cause"]["message"]
    running.thread.join(SECONDS)


def test_a_job_without_an_operator_that_has_state_cannot_be_rescaled_and_says_so(
    job: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestClient, "parallelism", lambda client: {})
    refused = holdfast("rescale", job.directory, "3")
    assert refused.exit_code == 1
    assert "has no operator with state" in refused.stderr
