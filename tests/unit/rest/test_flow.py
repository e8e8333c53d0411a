"""What has flowed through a job, how busy its subtasks are, and where the time of an epoch went, over REST."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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


def test_the_subtasks_of_another_parallelism_begin_with_nothing(job: Running) -> None:
    job.client.rescale({"count": 3})
    job.say("sand")
    until(lambda: job.client.get("vertices/count")["metrics"]["read-records"] == 1)
    assert len(job.client.get("vertices/count")["subtasks"]) == 3


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
