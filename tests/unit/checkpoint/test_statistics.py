"""Counts, history and summary of checkpoints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.messages import CheckpointMetrics
from holdfast.checkpoint.snapshot_type import CheckpointProperties, CheckpointRetentionPolicy
from holdfast.checkpoint.statistics import CheckpointStatsTracker, Counts, RestoredStats, Summary
from holdfast.errors import ConfigurationError

CHECKPOINT = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.RETAIN_ON_FAILURE)
SAVEPOINT = CheckpointProperties.for_savepoint()


def pend(tracker, checkpoint_id, properties=CHECKPOINT):
    tracker.report_pending(checkpoint_id, 100 * checkpoint_id, properties, {"v": 2})


def finish(tracker, checkpoint_id, size=10):
    return tracker.report_completed(
        checkpoint_id, 100 * checkpoint_id + 7, path="p", state_size=size, new_size=1, metadata_size=2
    )


def test_the_history_is_newest_first_and_bounded_but_the_latest_of_each_kind_stay_known():
    tracker = CheckpointStatsTracker(2)
    for checkpoint_id in range(1, 8):
        pend(tracker, checkpoint_id, SAVEPOINT if checkpoint_id == 1 else CHECKPOINT)
        if checkpoint_id == 2:
            assert tracker.report_failed(2, 205, "no")
        else:
            assert finish(tracker, checkpoint_id)
    snapshot = tracker.create_snapshot()
    assert [stats.checkpoint_id for stats in snapshot.history] == [7, 6]
    assert snapshot.counts == Counts(0, 7, 0, 6, 1)
    assert snapshot.latest_savepoint.checkpoint_id == 1
    assert snapshot.find(2).failure_message == "no"
    assert snapshot.find(3) is None


def test_with_a_history_of_none_the_latest_are_still_known():
    tracker = CheckpointStatsTracker(0)
    pend(tracker, 1)
    assert finish(tracker, 1)
    snapshot = tracker.create_snapshot()
    assert snapshot.history == ()
    assert snapshot.find(1).status == "COMPLETED"
    with pytest.raises(ConfigurationError, match="0 or more"):
        CheckpointStatsTracker(-1)


def test_numbers_are_never_negative_and_unknown_ids_break_nothing():
    tracker = CheckpointStatsTracker(2)
    assert not finish(tracker, 9)
    assert not tracker.report_failed(9, 1, "x")
    tracker.report_failed_without_in_progress()
    assert tracker.create_snapshot().counts == Counts(0, 1, 0, 1, 2)


def test_subtasks_are_counted_once_and_also_when_late():
    tracker = CheckpointStatsTracker(2)
    pend(tracker, 1)
    for index in (0, 0, 1):
        tracker.report_subtask(1, "v", index, CheckpointMetrics(processed=3), 150)
    [stats] = tracker.create_snapshot().history
    assert (stats.num_subtasks, stats.num_acknowledged, stats.processed_data) == (2, 2, 6)
    assert stats.latest_ack_timestamp == 150
    assert stats.subtasks["v"][0].end_to_end_duration == 50
    tracker.report_failed(1, 200, "late")
    tracker.report_subtask(99, "v", 0, CheckpointMetrics(), 1)


def test_a_snapshot_does_not_change_any_more():
    tracker = CheckpointStatsTracker(2)
    pend(tracker, 1)
    snapshot = tracker.create_snapshot()
    tracker.report_subtask(1, "v", 0, CheckpointMetrics(), 150)
    finish(tracker, 1)
    assert snapshot.history[0].num_acknowledged == 0
    assert snapshot.history[0].status == "IN_PROGRESS"
    assert snapshot.history[0].end_to_end_duration == -1


def test_a_restore_and_a_discard_are_known():
    tracker = CheckpointStatsTracker(2)
    pend(tracker, 1)
    finish(tracker, 1)
    tracker.report_discarded(1)
    tracker.report_discarded(99)
    tracker.report_restored(RestoredStats(1, CHECKPOINT, 5, "p"))
    snapshot = tracker.create_snapshot()
    assert snapshot.history[0].is_discarded
    assert (snapshot.counts.restored, snapshot.restored.external_path) == (1, "p")


def test_the_summary_covers_all_completed_ones():
    tracker = CheckpointStatsTracker(1)
    for checkpoint_id in range(1, 101):
        pend(tracker, checkpoint_id)
        finish(tracker, checkpoint_id, size=checkpoint_id)
    summary = tracker.create_snapshot().summary("state_size").to_json()
    assert (summary["min"], summary["max"], summary["avg"]) == (1, 100, 50)
    assert summary["p50"] == pytest.approx(50.5)
    assert Summary(()).to_json()["max"] == 0


@given(st.lists(st.integers(0, 10**12), min_size=1))
def test_quantiles_are_in_order_and_in_range(values):
    summary = Summary(values).to_json()
    quantiles = [summary[name] for name in ("p50", "p90", "p95", "p99", "p999")]
    assert quantiles == sorted(quantiles)
    assert summary["min"] <= quantiles[0]
    assert quantiles[-1] <= summary["max"]
