"""Hooks on the job master's side take part in checkpoints."""

import threading
import time
from concurrent.futures import CancelledError, Future

import pytest

from holdfast.checkpoint.master_hook import MasterHooks, MasterTriggerRestoreHook, SilentHookError
from holdfast.errors import CheckpointError, CheckpointFailureReason, StateError
from holdfast.storage.state_handle import DocumentSerializer
from tests.unit.checkpoint.support import LocalJob, complete, document


class Hook(MasterTriggerRestoreHook):
    def __init__(self, identifier="hook", state=None, serializer=True):
        self.identifier, self.state = identifier, state
        self.serializer = DocumentSerializer("hook", 1, lambda v: {"v": v}, lambda b: b["v"]) if serializer else None
        self.restored, self.resets, self.closed = [], 0, 0

    def get_identifier(self):
        return self.identifier

    def trigger_checkpoint(self, checkpoint_id, timestamp, executor):
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def restore_checkpoint(self, checkpoint_id, state):
        self.restored.append((checkpoint_id, state))

    def create_checkpoint_data_serializer(self):
        return self.serializer

    def reset(self):
        self.resets += 1

    def close(self):
        self.closed += 1
        raise RuntimeError("cannot close")


def test_state_of_hooks_travels_through_a_checkpoint(tmp_path):
    job = LocalJob(tmp_path)
    _, coordinator = job.lead()
    for hook in (Hook("a", ["x", 1]), Hook("none", None)):
        assert coordinator.add_master_hook(hook)
    pending = coordinator.begin(1)
    completed = coordinator.complete(pending, document(1, master_states=pending.master_states))
    assert set(completed.metadata.master_states) == {"a"}
    _, successor = job.lead()
    first, second = Hook("a"), Hook("none")
    successor.add_master_hook(first)
    successor.add_master_hook(second)
    assert successor.restore_latest_checkpointed_state({}, True, False)
    assert (first.restored, second.restored) == ([(1, ["x", 1])], [(1, None)])


def test_a_future_is_waited_for():
    future = Future()
    future.set_result("later")
    hooks = MasterHooks()
    hooks.add(Hook("a", future))
    stored = hooks.trigger("a", 1, 0, None, 1)
    other = Hook("a")
    again = MasterHooks()
    again.add(other)
    again.restore(1, {"a": stored}, allow_unmatched=False)
    assert other.restored == [(1, "later")]


def test_a_hook_that_does_not_answer_in_time_declines_for_the_driver():
    hooks = MasterHooks()
    hooks.add(Hook("slow", Future()))
    with pytest.raises(CheckpointError, match="'slow': it has not answered in") as caught:
        hooks.trigger("slow", 1, 0, None, 0.01)
    assert caught.value.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TIME_OUT


def test_a_hook_whose_method_never_returns_is_given_up_until_it_comes_back():
    hooks, released = MasterHooks(), threading.Event()

    class Stuck(Hook):
        def trigger_checkpoint(self, checkpoint_id, timestamp, executor):
            if checkpoint_id == 1:
                released.wait()
            return super().trigger_checkpoint(checkpoint_id, timestamp, executor)

    hooks.add(Stuck("stuck", "state"))
    hooks.timeout = 60
    with pytest.raises(CheckpointError, match="'stuck': it has not answered in") as caught:
        hooks.trigger("stuck", 1, 0, None, 0.01)
    assert caught.value.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TIME_OUT
    with pytest.raises(CheckpointError, match="'stuck': it has not returned from an earlier call"):
        hooks.trigger("stuck", 2, 0, None, 60)
    with pytest.raises(SilentHookError, match=r"'stuck', reset\(\): it has not returned"):
        hooks.reset()
    released.set()
    while True:
        try:
            assert hooks.trigger("stuck", 3, 0, None, 60) is not None
            break
        except CheckpointError:  # its thread is on the way
            time.sleep(0.01)
    hooks.close()


def test_a_name_is_needed_and_the_first_one_stays():
    hooks = MasterHooks()
    with pytest.raises(TypeError):
        hooks.add(None)
    for blank in ("", "  ", None, 7, b"a"):
        with pytest.raises(ValueError, match="name"):
            hooks.add(Hook(blank))
    assert hooks.add(Hook("a"))
    assert not hooks.add(Hook("a"))


def test_a_hook_that_fails_or_has_no_serializer_fails_the_trigger(tmp_path):
    job = LocalJob(tmp_path)
    _, coordinator = job.lead()
    hook = Hook("a", RuntimeError("no"))
    coordinator.add_master_hook(hook)
    with pytest.raises(CheckpointError, match="Master hook 'a'") as caught:
        coordinator.begin(1)
    assert caught.value.reason is CheckpointFailureReason.MASTER_HOOK_FAILURE
    hook.state, hook.serializer = "state", None
    with pytest.raises(CheckpointError, match="serializer"):
        coordinator.master_hooks.trigger("a", 1, 0, None, 1)
    hook.state = CancelledError()
    with pytest.raises(CheckpointError, match="Master hook 'a': CancelledError"):
        coordinator.master_hooks.trigger("a", 1, 0, None, 1)
    hook.state = None
    assert complete(coordinator, 2)


def test_state_without_a_hook_is_refused_unless_that_is_allowed():
    hooks = MasterHooks()
    hook = Hook("a")
    hooks.add(hook)
    with pytest.raises(StateError, match="'gone'"):
        hooks.restore(1, {"gone": {}}, allow_unmatched=False)
    hooks.restore(1, {"gone": {}}, allow_unmatched=True)
    assert hook.restored == [(1, None)]


def test_without_a_checkpoint_hooks_begin_anew_and_closing_never_fails(tmp_path):
    _, coordinator = LocalJob(tmp_path).lead()
    hook = Hook("a")
    coordinator.add_master_hook(hook)
    assert not coordinator.restore_latest_checkpointed_state({})
    assert hook.resets == 1
    coordinator.shutdown()
    assert hook.closed == 1
