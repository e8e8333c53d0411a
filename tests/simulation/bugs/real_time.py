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
    """A task goes on where a frame is missing."""
    yield edited(InputGate, "_receive", "if sequence != channel.sequence:", "if sequence < channel.sequence:")


def repeated_frames_accepted() -> Patch:
    """A frame that comes twice is taken twice."""
    yield edited(InputGate, "_receive", "if sequence != channel.sequence:", "if sequence > channel.sequence:")


def frames_of_an_old_attempt_accepted() -> Patch:
    """A frame that an old attempt has sent is taken."""
    yield edited(InputGate, "_receive", "if attempt != self._attempt:", "if False:")


def first_barrier_releases() -> Patch:
    """The barrier of one producer is enough."""
    yield edited(InputGate, "_align", "if all(", "if any(")


def nothing_is_held() -> Patch:
    """Elements behind a barrier are processed before the others have sent it."""
    yield edited(InputGate, "_receive", "self._is_aligned or", "False or")


def held_frames_are_forgotten() -> Patch:
    """What was held behind a barrier is never processed."""
    yield edited(InputGate, "_accept_held", "self._accept(channel, kind, watermarks, body)", "pass")


def watermark_of_the_fastest_producer() -> Patch:
    """The fastest producer decides about the watermark."""
    yield edited(InputGate, "watermarks", "min(active", "max(active")


def watermark_before_its_elements() -> Patch:
    """A watermark is sent before the elements that it follows."""
    late = "self._frames.add_watermarks(); self._frames.advance(self._current()); self._add_output()"
    yield edited(RealTimeTask, "_output", "self._add_output()", late)


def fastest_partition() -> Patch:
    """The fastest partition of a task decides about its watermark."""
    yield edited(_OwnClock, "_slowest", "min(known", "max(known")


def partitions_without_elements_do_not_count() -> Patch:
    """The watermark does not wait for a partition of which nothing was read."""
    yield edited(_OwnClock, "_slowest", "if len(known) == len(active) else None", "")


def credit_not_given_back() -> Patch:
    """A task never grants what it has consumed."""
    yield edited(RealTimeTask, "_grant", "self._driver.send(", "dict(kind=")


def barrier_before_the_flush() -> Patch:
    """A barrier is sent on without the elements before it."""
    yield edited(RealTimeTask, "_barrier", "self._add_output()", "pass")


def position_after_the_next_read() -> Patch:
    """The position of a source has elements that were read behind the barrier."""
    line = "positions = self._readers.snapshot(number)"
    yield edited(RealTimeTask, "_barrier", line, f"self._readers.poll(); {line}")


def snapshot_after_the_next_elements() -> Patch:
    """A task processes elements behind a barrier, and then takes its snapshot."""
    more = "[self._task.take_arrival(one) for one in layout.arrivals(gate.take_messages(64))]"
    line = "yield from self._barrier(barrier)"
    yield edited(RealTimeTask, "_read_exchange", line, f"gate.release(barrier.number); {more}; {line}")


def own_runs_forgotten() -> Patch:
    """Behind a barrier a task goes on without what it has just written."""
    known = "versions.get(step.uid, StateVersion())"
    yield edited(RealTimeTask, "_next", f"{known}.plus(", f"(lambda runs: {known})(")


def task_without_driver_goes_on() -> Patch:
    """A task whose driver is lost never ends."""
    yield edited(RealTimeTask, "_handle", "raise lost_driver_error()", "pass")


def one_task_not_waited_for() -> Patch:
    """A checkpoint is complete though one of its tasks has not acknowledged it."""
    line = "tuple(reports[task] for task in self._tasks_of(stage.index))"
    enough = "len(barrier.reports) == number"
    yield edited(RealTimeEngine, "_wait_for_acknowledgements", enough, "len(barrier.reports) >= number - 1")
    yield edited(RealTimeEngine, "execute", line, line.replace("self.", "reports.keys() & self."))


def barriers_without_limit() -> Patch:
    """As many barriers are under way as there is time for."""
    yield edited(RealTimeEngine, "_trigger_next", "pending >= self._max_concurrent or ", "")


def reports_taken_twice() -> Patch:
    """What a task has written for a checkpoint that is complete counts for the next one again."""
    yield edited(RealTimeEngine, "_unaccepted", "if part > self._accepted", "")


def reports_under_way_forgotten() -> Patch:
    """A task whose checkpoint is complete forgets what it has written for those behind it."""
    yield edited(RealTimeTask, "_accept", "elif number > decided:", "elif False:")


def abandoned_reports_forgotten() -> Patch:
    """A task forgets what it has written for a checkpoint that was abandoned."""
    yield edited(RealTimeTask, "_accept", "[(decided, merged)]", "[]")


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
    """The positions of one task are those of all."""
    line = 'self._sources.acknowledge([message["positions"] for message in barrier.messages.values()]'
    yield edited(RealTimeEngine, "execute", line, f"{line}[:1]")


def splits_assigned_twice() -> Patch:
    """A split is assigned again although a task reads it."""
    yield edited(SourceCoordinator, "assignments", "split.task = task", "pass")


def positions_stay() -> Patch:
    """The position of a split stays where it was."""
    yield edited(_Input, "acknowledge", "split.state = state", "pass")


def over_when_assigned() -> Patch:
    """The input is over when tasks have got it."""
    yield edited(_Input, "is_finished", " and not self.open", "")
