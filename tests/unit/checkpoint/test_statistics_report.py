"""The statistics have the form of the REST interface, and every value is JSON."""

import json

from holdfast.checkpoint.checkpoint_machine import CheckpointParticipant
from holdfast.checkpoint.config import CoordinatorConfiguration
from holdfast.checkpoint.messages import CheckpointMetrics
from holdfast.checkpoint.statistics import config, details, overview, subtask_details
from holdfast.kernel.clock import ManualClock
from tests.unit.checkpoint.support import LocalJob, document, run_handle

TASKS = [CheckpointParticipant("a-0", "a", 0, 2), CheckpointParticipant("a-1", "a", 1, 2)]


def test_an_overview_tells_of_completed_failed_and_running_ones(tmp_path):
    clock = ManualClock(5000)
    _, coordinator = LocalJob(tmp_path).lead(clock)
    first = coordinator.begin(1, TASKS)
    clock.advance(20)
    coordinator.acknowledge(first, "a-0", CheckpointMetrics(7, 70, 1, 2, 3, 4))
    clock.advance(10)
    coordinator.acknowledge(first, "a-1", CheckpointMetrics(9, 90))
    coordinator.complete(first, document(first.checkpoint_id, runs=[run_handle("x.run"), run_handle("y.run", epoch=0)]))
    second = coordinator.begin(2, TASKS)
    coordinator.acknowledge(second, "a-0")
    report = json.loads(json.dumps(overview(coordinator.get_statistics())))
    assert report["counts"] == {"restored": 0, "total": 2, "in_progress": 1, "completed": 1, "failed": 0}
    running, completed = report["history"]
    assert (running["id"], running["status"], running["num_acknowledged_subtasks"]) == (2, "IN_PROGRESS", 1)
    assert (completed["state_size"], completed["checkpointed_size"], completed["end_to_end_duration"]) == (10, 5, 30)
    assert (completed["checkpoint_type"], completed["discarded"]) == ("CHECKPOINT", False)
    assert completed["external_path"].endswith("chk-1")
    assert report["latest"]["completed"] == completed
    assert report["latest"]["failed"] is None
    assert report["summary"]["end_to_end_duration"]["p99"] == 30
    assert set(report["summary"]) == {
        "checkpointed_size", "state_size", "end_to_end_duration", "alignment_buffered", "processed_data",
        "persisted_data",
    }  # fmt: skip

    stats = coordinator.get_statistics().find(1)
    assert details(stats)["tasks"]["a"]["checkpointed_size"] == 16
    subtasks = subtask_details(stats, "a")
    assert [subtask["end_to_end_duration"] for subtask in subtasks["subtasks"]] == [20, 30]
    assert subtasks["subtasks"][0]["checkpoint"] == {"sync": 1, "async": 2}
    assert subtasks["summary"]["state_size"]["max"] == 90
    waiting = subtask_details(coordinator.get_statistics().find(2), "a")["subtasks"][1]
    assert waiting == {"index": 1, "status": "pending_or_failed"}
    assert subtask_details(stats, "stranger") is None
    json.dumps(subtasks)


def test_the_configuration_is_reported_as_it_acts():
    report = config(CoordinatorConfiguration(), state_backend="hashmap", checkpoint_storage="filesystem")
    assert (report["mode"], report["interval"], report["max_concurrent"]) == ("exactly_once", 0, 1)
    assert report["externalization"] == {"enabled": True, "delete_on_cancellation": False}
    json.dumps(report)
