"""Which request for a checkpoint is carried out next."""

from holdfast.checkpoint.checkpoint_machine import CheckpointRequestDecider, CheckpointTriggerRequest
from holdfast.checkpoint.snapshot_type import CheckpointProperties, CheckpointRetentionPolicy
from holdfast.errors import CheckpointFailureReason

POLICY = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION


def periodic(timestamp=0):
    return CheckpointTriggerRequest(CheckpointProperties.for_checkpoint(POLICY), None, True, timestamp)


def manual(timestamp=0):
    return CheckpointTriggerRequest(CheckpointProperties.for_checkpoint(POLICY), None, False, timestamp)


def savepoint(timestamp=0, force=True):
    return CheckpointTriggerRequest(CheckpointProperties.for_savepoint(force), "/s", False, timestamp)


def choose(decider, new=None, *, is_triggering=False, pending=0, since=None):
    return decider.choose(new, is_triggering=is_triggering, pending=pending, since_last_completion=since)


def test_savepoints_then_forced_then_asked_for_then_older_ones():
    decider = CheckpointRequestDecider(1, 0)
    requests = [periodic(1), periodic(0), manual(9), manual(8), savepoint(20, force=False), savepoint(30)]
    for request in requests:
        choose(decider, request, is_triggering=True)
    chosen = [choose(decider).chosen for _ in requests]
    assert chosen == [requests[5], requests[4], requests[3], requests[2], requests[1], requests[0]]
    assert choose(decider).chosen is None


def test_nothing_is_chosen_while_another_is_triggered():
    decider = CheckpointRequestDecider(1, 0)
    request = savepoint()
    assert choose(decider, request, is_triggering=True).chosen is None
    assert choose(decider).chosen is request


def test_with_too_many_under_way_only_a_forced_one_goes_on():
    decider = CheckpointRequestDecider(2, 0)
    ordinary = manual()
    assert choose(decider, ordinary, pending=2).chosen is None
    forced = savepoint()
    assert choose(decider, forced, pending=2).chosen is forced
    assert choose(decider, pending=2).chosen is None
    assert choose(decider, pending=1).chosen is ordinary


def test_a_periodic_one_that_comes_too_early_is_dropped_and_tried_later():
    decider = CheckpointRequestDecider(1, 500)
    early = periodic()
    decision = choose(decider, early, since=200)
    assert decision.chosen is None
    assert decision.rejected == ((early, CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS),)
    assert decision.retry_periodic_after == 300
    assert len(decider) == 0
    for other in (manual(), savepoint()):
        assert choose(decider, other, since=200).chosen is other
    on_time = periodic()
    assert choose(decider, on_time, since=500).chosen is on_time


def test_a_full_queue_drops_a_periodic_one_or_else_the_new_one():
    decider = CheckpointRequestDecider(1, 0, capacity=2)
    first, second, third = periodic(1), periodic(2), manual(3)
    choose(decider, first, is_triggering=True)
    choose(decider, second, is_triggering=True)
    decision = choose(decider, third, is_triggering=True)
    assert decision.rejected == ((second, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS),)
    choose(decider, manual(4), is_triggering=True)
    fifth = savepoint(5)
    decision = choose(decider, fifth, is_triggering=True)
    assert decision.rejected == ((fifth, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS),)
    assert len(decider) == 2


def test_draining_takes_all():
    decider = CheckpointRequestDecider(1, 0)
    requests = [manual(), periodic()]
    for request in requests:
        choose(decider, request, is_triggering=True)
    assert list(decider.drain()) == requests
    assert len(decider) == 0
