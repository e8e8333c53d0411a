"""What has flowed through a job, how busy its subtasks are, and where the time of an epoch went, over REST."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.kernel.secret import get_logger
from holdfast.rest.job_api import RecentLog
from tests.stories.served import Running, refused, until


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.end()


def test_rows_and_bytes_of_each_edge_are_counted(job: Running) -> None:
    job.say("sand", "sand", "silt")
    until(lambda: job.client.get("epochs")["total"] == 2)
    nodes = {node["id"]: node for node in job.client.get("plan")["plan"]["nodes"]}
    assert [nodes[uid]["operator"] for uid in ("words", "count", "sink")] == ["source", "keyed", "sink"]
    [keyed], [chained] = nodes["count"]["inputs"], nodes["sink"]["inputs"]
    assert (keyed["id"], keyed["ship_strategy"], keyed["records"], keyed["last-records"]) == ("words", "HASH", 5, 3)
    assert keyed["bytes"] > keyed["last-bytes"] > 3 * len("sand")
    assert (chained["id"], chained["ship_strategy"], chained["records"], chained["bytes"]) == (
        "count",
        "FORWARD",
        5,
        None,
    )


def test_a_hot_key_shows_as_skew_of_the_subtasks(job: Running) -> None:
    job.say(*["sand"] * 98)
    until(lambda: job.client.get("epochs")["total"] == 2)
    count = job.client.get("vertices/count")
    read = [subtask["metrics"]["read-records"] for subtask in count["subtasks"]]
    assert [subtask["subtask"] for subtask in count["subtasks"]] == [0, 1]
    assert sum(read) == count["metrics"]["read-records"] == count["metrics"]["write-records"] == 100
    assert count["skew"]["read-records"] == round(max(read) / 50, 2) > 1.9
    assert count["metrics"]["accumulated-busy-time"] > 0
    assert all(subtask["metrics"]["accumulated-busy-time"] > 0 for subtask in count["subtasks"])
    assert count["metrics"]["read-bytes"] == sum(s["metrics"]["read-bytes"] for s in count["subtasks"]) > 100
    assert refused(lambda: job.client.get("vertices/nobody")).status == 404


def test_totals_survive_a_rescale_and_its_new_subtasks_say_since_when_they_count(job: Running) -> None:
    before = job.client.get("vertices/count")
    assert before["subtasks-since"] == job.client.get()["start-time"]
    job.client.rescale({"count": 3})
    job.say("sand")
    until(lambda: job.client.get("vertices/count")["metrics"]["read-records"] == 3)
    count = job.client.get("vertices/count")
    assert count["metrics"]["write-records"] == 3
    assert count["metrics"]["accumulated-busy-time"] > before["metrics"]["accumulated-busy-time"]
    assert sum(subtask["metrics"]["read-records"] for subtask in count["subtasks"]) == 1
    assert len(count["subtasks"]) == 3
    [rescale] = job.client.get("rescales/history")["rescaleHistory"]
    assert count["subtasks-since"] == rescale["endTimestampInMillis"]
    job.client.rescale({"count": 2})
    job.say("silt", "silt")
    until(lambda: job.client.get("vertices/count")["metrics"]["read-records"] == 5)
    nodes = {node["id"]: node for node in job.client.get("plan")["plan"]["nodes"]}
    assert nodes["sink"]["inputs"][0]["records"] == 5


def test_a_client_that_watches_sees_how_the_job_ended(tmp_path: Path) -> None:
    job = Running(tmp_path)
    client = job.client
    assert client.get("?watch=1500")["state"] == "RUNNING"
    client.cancel()
    until(lambda: job.master.status.is_terminal_state())
    time.sleep(1.5)
    ended = client.get("?watch=1500")
    assert (ended["state"], ended["end-time"]) == ("CANCELED", job.master.history.entered[job.master.status])
    assert ended["vertices"][0]["metrics"]["read-records"] == 2, "with all that it did"
    job.thread.join(10)
    assert not job.thread.is_alive(), "who watches keeps no process for long"
    assert refused(client.get).status is None
    assert refused(lambda: client.get("?watch=0")).status is None


def test_a_job_that_nobody_watches_ends_at_once(tmp_path: Path) -> None:
    job = Running(tmp_path)
    job.client.get()
    began = time.monotonic()
    job.end()
    assert time.monotonic() - began < 1.5


def test_an_epoch_job_has_no_back_pressure_to_tell(job: Running) -> None:
    assert job.client.get("vertices/count/backpressure") == {"status": "deprecated"}
    assert job.client.get("vertices/words/backpressure") == {"status": "deprecated"}
    assert refused(lambda: job.client.get("vertices/nobody/backpressure")).status == 404


def test_the_log_of_a_job_is_read_as_it_grows_and_without_credentials(job: Running) -> None:
    log = get_logger("holdfast.tests")
    log.warning("first, password=sesame")
    first = job.client.get("log")
    assert first["text"].endswith("WARNING holdfast.tests: first, password=******\n")
    assert first["offset"] == 0 and first["next"] == len(first["text"].encode()) and first["ended"] is False
    log.warning("sécond")
    second = job.client.get(f"log?offset={first['next']}")
    assert second["text"].endswith("WARNING holdfast.tests: sécond\n") and "first" not in second["text"]
    assert job.client.get("log?tail=8")["text"] == "sécond\n"
    assert job.client.get(f"log?offset={10**15}")["text"] == ""
    for _ in range(300):
        log.warning("%s", "x" * 1000)
    kept = job.client.get("log?offset=0")
    assert kept["offset"] > 0 and 200_000 < len(kept["text"]) <= 256 * 1024
    assert kept["next"] == kept["offset"] + len(kept["text"])
    job.end()
    assert not any(isinstance(handler, RecentLog) for handler in logging.getLogger("holdfast").handlers)


def test_epochs_say_when_they_began_and_where_their_time_went(job: Running) -> None:
    job.say("sand")
    until(lambda: job.client.get("epochs")["total"] == 2)
    told = job.client.get("epochs")
    first, second = told["epochs"]
    assert first["started"] <= second["started"] <= told["now"]
    assert [epoch["rows"] for epoch in told["epochs"]] == [2, 1]
    for epoch in told["epochs"]:
        parts = epoch["task_ms"], epoch["checkpoint_ms"], epoch["commit_ms"]
        assert sum(parts) <= epoch["duration_ms"] + 1
        assert 0 <= epoch["saving_ms"] <= epoch["function_ms"] <= epoch["task_ms"] + 1
        [sink] = epoch["sinks"]
        assert (sink["id"], (sink["epoch"] or 0) + sink["behind"]) == ("sink", epoch["epoch"])
        assert bool(sink["commit_ms"]) is (sink["epoch"] is not None)
    assert told["sources"] == [{"id": "words", "behind": 0}]
    until(lambda: job.client.get("epochs")["sinks"][0]["behind"] == 0)
    [sink] = job.client.get("epochs")["sinks"]
    assert (sink["id"], sink["epoch"], sink["pending_rows"], sink["lag_ms"]) == ("sink", 2, 0, 0)
    later = job.client.get(f"epochs?since={first['started']}")["epochs"]
    assert [epoch["epoch"] for epoch in later] == [second["epoch"]]
    assert refused(lambda: job.client.get("epochs?since=now")).status == 400


@pytest.mark.parametrize(
    "damage", [{"busy": "1"}, {"arrived": []}, {"arrived": {"e": [1]}}, {"arrived": {"e": [1, 2.5]}}]
)
def test_a_report_with_other_numbers_is_none(damage: dict[str, object]) -> None:
    from holdfast.kernel.parsing import PARSE_ERRORS
    from holdfast.runtime.exchange.task_report import StepReport

    report = StepReport("count", 0, busy=7, arrived={"e": (1, 2)}).to_json()
    assert StepReport.from_json(report) == StepReport("count", 0, busy=7, arrived={"e": (1, 2)})
    with pytest.raises(PARSE_ERRORS):
        StepReport.from_json(report | damage)
