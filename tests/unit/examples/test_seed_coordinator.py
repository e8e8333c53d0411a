"""The seeds' two examples around the coordinator run."""

from examples.seeds import coordinator as coordinator_example
from examples.seeds import trigger as trigger_example
from holdfast.checkpoint.completed_checkpoint import read_by_path
from holdfast.kernel.clock import ManualClock


def test_a_checkpoint_that_is_triggered_by_hand_completes(tmp_path, capsys):
    completed = trigger_example.main(tmp_path.as_uri())
    assert capsys.readouterr().out == "Checkpoint completed: 1\n"
    found = read_by_path(completed.get_external_pointer())
    assert found.metadata.operators[0].subtasks == (
        {"subtask": 0, "state": {"counted": 1}},
        {"subtask": 1, "state": {"counted": 1}},
    )


def test_periodic_checkpoints_come_by_themselves_and_only_one_is_kept(tmp_path):
    clock = ManualClock()
    coordinator, tasks = coordinator_example.create_coordinator(str(tmp_path), clock=clock)
    coordinator.start_checkpoint_scheduler()
    for _ in range(3):
        for task in tasks:
            task.notified.clear()
        clock.advance(30_000)
        assert tasks[1].notified.wait(30)
    assert [task.committed for task in tasks] == [3, 3]
    assert [checkpoint.checkpoint_id for checkpoint in coordinator.get_successful_checkpoints()] == [3]
    coordinator.shutdown()
    directory = next(tmp_path.iterdir())
    assert sorted(path.name for path in directory.glob("chk-*")) == ["chk-3"]
