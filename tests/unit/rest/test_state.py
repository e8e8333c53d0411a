"""State of completed checkpoints over REST: what there is, one key, a scan, the largest, and what two differ in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.stories.served import Running, refused, until


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.end()


def rows(job: Running, query: str, checkpoint: object = "latest") -> list[dict[str, str]]:
    found = job.client.get(f"state/{checkpoint}/operators/count/count?{query}")["rows"]
    return [{"key": row["key"], "value": row["value"]} for row in found]


def test_checkpoints_and_savepoints_are_looked_into(job: Running, tmp_path: Path) -> None:
    asked = job.client.post("savepoints", {"target-directory": str(tmp_path / "savepoints")})
    path = job.client.wait_for_result("savepoints", asked["request-id"], 30)["location"]
    snapshots = job.client.get("state")["snapshots"]
    assert [snapshot["id"] for snapshot in snapshots] == sorted((s["id"] for s in snapshots), reverse=True)
    [savepoint] = [snapshot for snapshot in snapshots if snapshot["type"] == "SAVEPOINT"]
    assert savepoint["path"] == path
    for snapshot in (savepoint["id"], 1, "latest"):
        states = job.client.get(f"state/{snapshot}")
        [state] = states["states"]
        assert (state["uid"], state["state"], state["kind"], state["type"]) == ("count", "count", "value", "bigint")
        assert (state["rows"], states["counted"]) == (2, False)
        assert 0 < state["bytes"] <= states["state_size"]
    [counted] = job.client.get("state/latest?count=true")["states"]
    assert counted["rows"] == 2
    assert counted["key_group_skew"] > 1
    assert refused(lambda: job.client.get("state/99")).status == 404
    assert "Retained are: " in str(refused(lambda: job.client.get("state/99")))
    assert refused(lambda: job.client.get("state/x")).status == 404


def test_a_key_is_looked_up_as_it_was_when_the_checkpoint_completed(job: Running) -> None:
    job.say("kelp", "kelp")
    until(lambda: job.client.get("epochs")["total"] == 2)
    assert rows(job, "key=kelp") == [{"key": "kelp", "value": "3"}]
    assert rows(job, "key=kelp", 1) == [{"key": "kelp", "value": "1"}]
    assert rows(job, "key=nobody") == []
    assert refused(lambda: job.client.get("state/latest/operators/count/other?key=a")).status == 404
    assert refused(lambda: job.client.get("state/latest/operators/other/count?key=a")).status == 404


def test_a_scan_has_conditions_and_goes_on_where_it_stopped(job: Running) -> None:
    job.say(*[f"word {number}" for number in range(500)], "kelp")
    until(lambda: job.client.get("epochs")["total"] == 2)
    assert rows(job, f"where={quote('value > 1')}") == [{"key": "kelp", "value": "2"}]
    both = quote('key = "rock" and value < 5')
    assert rows(job, f"where={both}") == [{"key": "rock", "value": "1"}]
    assert rows(job, "contains=WORD%20499") == [{"key": "word 499", "value": "1"}]
    found, start = [], 0
    while start is not None:
        part = job.client.get(f"state/latest/operators/count/count?limit=100&start={start}")
        assert part["columns"] == [
            {"name": "key_group", "type": "int"},
            {"name": "key", "type": "string"},
            {"name": "value", "type": "bigint"},
        ]
        found += [row["key"] for row in part["rows"]]
        start = part["next"]
    assert sorted(found) == sorted(["kelp", "rock", *[f"word {number}" for number in range(500)]])
    for wrong in ("value", "nothing > 1", "value > text"):
        error = refused(lambda wrong=wrong: rows(job, f"where={quote(wrong)}"))
        assert error.status == 400, wrong
    assert refused(lambda: rows(job, "limit=-1")).status == 400


def test_the_largest_keys_and_key_groups_are_found(job: Running) -> None:
    long = "a" * 1000
    job.say(long, *[f"word {number}" for number in range(100)])
    until(lambda: job.client.get("epochs")["total"] == 2)
    found = job.client.get("state/latest/operators/count/count/largest")
    assert (found["keys"], found["rows"], found["stopped_at"]) == (103, 103, None)
    assert found["largest_keys"][0]["key"] == long
    assert found["largest_keys"][0]["bytes"] == len(long) + 8
    assert len(found["largest_keys"]) == 20
    assert found["largest_groups"][0]["group"] == int(found["largest_keys"][0]["key_group"])
    assert found["largest_groups"][0]["subtask"] in (0, 1)
    assert sum(entry["bytes"] for entry in found["largest_groups"]) <= found["bytes"]


def test_two_checkpoints_are_compared(job: Running) -> None:
    job.say("sand")
    until(lambda: job.client.get("epochs")["total"] == 2)
    found = job.client.get("state/1/difference/2")
    assert (found["before"]["id"], found["after"]["id"]) == (1, 2)
    [state] = [entry for entry in found["differences"] if entry["state"] == "count"]
    assert (state["change"], state["before"]["rows"], state["after"]["rows"]) == ("changed", 2, 3)
    assert job.client.get("state/2/difference/2")["differences"] == []


def test_pages_of_any_size_lead_through_all_rows(job: Running) -> None:
    words = {f"word {number}" for number in range(1200)}
    job.say(*words)
    until(lambda: job.client.get("checkpoints")["counts"]["completed"] == 2)
    found: list[str] = []
    start: int | None = 0
    while start is not None:
        page = job.client.get(f"state/latest/operators/count/count?limit=1000&start={start}")
        found += [row["key"] for row in page["rows"]]
        assert len(page["rows"]) <= 500
        start = page["next"]
    assert words < set(found)
    assert len(found) == len(set(found))


def test_a_condition_may_have_the_word_and_in_its_text(job: Running) -> None:
    job.say("salt and pepper", 'a " and b')
    until(lambda: job.client.get("checkpoints")["counts"]["completed"] == 2)
    for condition in ('key == "salt and pepper"', 'value > 0 AND key == "salt and pepper" and value < 9'):
        assert [row["key"] for row in rows(job, f"where={quote(condition)}")] == ["salt and pepper"]
    condition = 'key == "a \\" and b" and value == 1'
    assert [row["key"] for row in rows(job, f"where={quote(condition)}")] == ['a " and b']
