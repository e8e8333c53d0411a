"""Bugs in real time: one line of the real code is another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.runtime.epoch import JobEpochs
from holdfast.runtime.realtime.engine import RealTimeEngine
from holdfast.runtime.realtime.message import InputGate
from holdfast.runtime.realtime.source_coordinator import SourceCoordinator, _Input
from holdfast.runtime.realtime.task import RealTimeTask, _OwnClock
from tests.simulation.edit import edited

Patch = Iterator[tuple[Any, str, Any]]


def lost_frames_accepted() -> Patch:
    """A task continues although a frame is missing."""
    yield edited(InputGate, "_receive", "if sequence != channel.sequence:", "if sequence < channel.sequence:")


def repeated_frames_accepted() -> Patch:
    """A frame that arrives twice is processed twice."""
    yield edited(InputGate, "_receive", "if sequence != channel.sequence:", "if sequence > channel.sequence:")


def frames_of_an_old_attempt_accepted() -> Patch:
    """A frame of an old attempt is processed."""
    yield edited(InputGate, "_receive", "if attempt != self._attempt:", "if False:")


def first_barrier_releases() -> Patch:
    """A task takes its snapshot after the barrier of one producer, without waiting for the others."""
    yield edited(InputGate, "_align", "if all(", "if any(")


def nothing_is_held() -> Patch:
    """Elements after a barrier are processed before the barriers of the other producers arrive."""
    yield edited(InputGate, "_receive", "self._is_aligned or", "False or")


def held_frames_are_forgotten() -> Patch:
    """Elements that were held after a barrier are never processed."""
    yield edited(InputGate, "_accept_held", "self._accept(channel, kind, watermarks, body)", "pass")


def watermark_of_the_fastest_producer() -> Patch:
    """The watermark of a task is that of its fastest producer."""
    yield edited(InputGate, "watermarks", "least_watermark(", "max(")


def watermark_before_its_elements() -> Patch:
    """A watermark is sent before the elements that precede it."""
    late = "self._frames.add_watermarks(); self._frames.advance(self._current()); self._add_output()"
    yield edited(RealTimeTask, "_output", "self._add_output()", late)


def fastest_partition() -> Patch:
    """The watermark of a source task is that of its fastest partition."""
    yield edited(_OwnClock, "_slowest", "min(known", "max(known")


def partitions_without_elements_do_not_count() -> Patch:
    """The watermark does not wait for a partition without elements."""
    yield edited(_OwnClock, "_slowest", "if len(known) == len(active) else None", "")


def source_over_before_its_end() -> Patch:
    """Event time does not wait for a source whose last splits are assigned, although they have unread elements."""
    yield edited(RealTimeTask, "_end_clocks", " if not self._readers.has_splits_of(uid)", "")


def ended_source_holds_its_group() -> Patch:
    """Sources wait for one that has ended."""
    yield edited(RealTimeTask, "_counted_watermark", "uid in self._ended or", "")


def credit_not_given_back() -> Patch:
    """A task never returns the credit for frames that it has consumed."""
    yield edited(RealTimeTask, "_grant", "self._driver.send(", "dict(kind=")


def barrier_before_the_flush() -> Patch:
    """A barrier is sent before buffered elements that precede it."""
    yield edited(RealTimeTask, "_pass_barrier", "self._add_output()", "pass")


def position_after_the_next_read() -> Patch:
    """The position of a source includes elements that were read after the barrier."""
    line = "positions = self._readers.snapshot(number)"
    yield edited(RealTimeTask, "_pass_barrier", line, f"self._readers.poll(); {line}")


def snapshot_after_the_next_elements() -> Patch:
    """A task processes elements after a barrier before it takes its snapshot."""
    more = "[self._task.take_arrival(one) for one in layout.arrivals(gate.take_messages(64))]"
    line = "yield from self._pass_barrier(barrier)"
    yield edited(RealTimeTask, "_read_exchange", line, f"gate.release(barrier.number); {more}; {line}")


def own_runs_forgotten() -> Patch:
    """After a barrier a task continues without the run that it has just written."""
    known = "versions.get(step.uid, StateVersion())"
    yield edited(RealTimeTask, "_following_epoch", f"{known}.plus(", f"(lambda runs: {known})(")


def task_without_driver_goes_on() -> Patch:
    """A task that has lost its driver never ends."""
    yield edited(RealTimeTask, "_handle", "raise lost_driver_error()", "pass")


def one_task_not_waited_for() -> Patch:
    """A checkpoint is complete although one of its tasks has not acknowledged it."""
    line = "tuple(reports[task] for task in self._tasks_of(stage.index))"
    enough = "len(barrier.reports) == number"
    yield edited(RealTimeEngine, "_wait_for_acknowledgements", enough, "len(barrier.reports) >= number - 1")
    yield edited(RealTimeEngine, "execute", line, line.replace("self.", "reports.keys() & self."))


def barriers_without_limit() -> Patch:
    """The number of barriers under way has no limit."""
    yield edited(RealTimeEngine, "_trigger_next", "pending >= self._max_concurrent or ", "")


def reports_taken_twice() -> Patch:
    """The output of a task for a completed checkpoint is also counted for the next one."""
    yield edited(RealTimeEngine, "_unaccepted", "if part > self._accepted", "")


def reports_under_way_forgotten() -> Patch:
    """When a checkpoint completes, a task forgets what it has written for later ones."""
    yield edited(RealTimeTask, "_record_epoch", "elif number > decided:", "elif False:")


def abandoned_reports_forgotten() -> Patch:
    """A task forgets what it has written for a checkpoint that was aborted."""
    yield edited(RealTimeTask, "_record_epoch", "[(decided, merged)]", "[]")


def newest_acknowledgement_counts_for_all() -> Patch:
    """The acknowledgement of a later barrier counts for the oldest one."""
    line = 'self._barriers.get(message["epoch"])'
    yield edited(RealTimeEngine, "_on_message", line, "next(iter(self._barriers.values()), None)")


def runs_replaced_under_way() -> Patch:
    """Merged runs replace others while a task may still read these."""
    results = "self._compaction.take_results(self.versions, self.plan, self._now())"
    yield edited(JobEpochs, "run", "if self._begun:", f"if setattr(self, 'versions', {results}) or self._begun:")
    yield edited(JobEpochs, "may_begin_next", "not self._compaction.has_results", "True")


def positions_of_one_task() -> Patch:
    """The positions of one task are used for all tasks."""
    line = 'self._sources.acknowledge([message["positions"] for message in barrier.messages.values()]'
    yield edited(RealTimeEngine, "execute", line, f"{line}[:1]")


def splits_assigned_twice() -> Patch:
    """A split is assigned again although a task already reads it."""
    yield edited(SourceCoordinator, "assignments", "split.task = task", "pass")


def positions_stay() -> Patch:
    """The position of a split does not advance."""
    yield edited(_Input, "acknowledge", "split.state = state", "pass")


def over_when_assigned() -> Patch:
    """A bounded input counts as finished when its splits are assigned."""
    yield edited(_Input, "is_finished", " and not self.open", "")
