"""Tasks that share a thread: what arrives for each of them, and whose turn ends then."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.realtime.control import ControlServer, TaskKey
from holdfast.runtime.realtime.task import _Inbox
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.unit.runtime.realtime.test_real_time_jobs import Rows, counted, numbers, until


def inboxes(count: int) -> list[_Inbox]:
    made: list[_Inbox] = []
    for _ in range(count):
        made.append(_Inbox(made[-1] if made else None))
    return made


def test_a_wait_ends_when_a_task_behind_gets_something_and_not_for_one_before() -> None:
    first, second, third = inboxes(3)
    third.put("behind")
    for inbox in (first, second):
        with pytest.raises(queue.Empty):
            inbox.get(timeout=60)  # of the test's own limit of 300 seconds
    assert third.get(timeout=60) == "behind"
    first.put("before")
    threading.Timer(0.1, second.put, ["own"]).start()
    assert second.get(timeout=60) == "own"
    assert first.get(timeout=0) == "before"


def test_a_wait_without_limit_is_for_the_own_item_only() -> None:
    first, second = inboxes(2)
    second.put("behind")
    threading.Timer(0.1, first.put, ["own"]).start()
    assert first.get() == "own"
    assert second.get_nowait() == "behind"


class InboxesOfOneThread(RuleBasedStateMachine):
    """Each inbox has the items that were put into it, in their order, and no others."""

    def __init__(self) -> None:
        super().__init__()
        self.inboxes: Sequence[_Inbox] = inboxes(3)
        self.expected: list[list[int]] = [[], [], []]
        self.number = 0

    @rule(at=st.integers(0, 2))
    def put(self, at: int) -> None:
        self.number += 1
        self.inboxes[at].put(self.number)
        self.expected[at].append(self.number)

    @rule(at=st.integers(0, 2), waits=st.booleans())
    def get(self, at: int, waits: bool) -> None:
        inbox = self.inboxes[at]
        if self.expected[at]:
            assert (inbox.get(timeout=60) if waits else inbox.get_nowait()) == self.expected[at].pop(0)
        else:
            with pytest.raises(queue.Empty):
                inbox.get(timeout=0.001 if waits else 0)

    @invariant()
    def others_are_known(self) -> None:
        for at, inbox in enumerate(self.inboxes):
            assert inbox.is_empty is not bool(self.expected[at])
            assert inbox.is_interrupted is any(map(bool, self.expected[at + 1 :]))


TestInboxesOfOneThread = InboxesOfOneThread.TestCase


def test_a_task_rests_behind_one_that_was_stopped_before_its_own_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeted: set[TaskKey] = set()
    send = ControlServer.send

    def stop_the_first(server: ControlServer, task: TaskKey, kind: str, **values: Any) -> None:
        if kind == "start":
            greeted.add(task)
        if kind != "start" or task == (0, 0):
            send(server, task, kind, **values)
        if kind == "start" and task == (0, 0):
            send(server, task, "stop")

    monkeypatch.setattr(ControlServer, "send", stop_the_first)
    program = RealTimeProgram()
    counted(numbers(program, 100), Rows())
    client = JobClient(program.master(tmp_path, parallelism=1, source_tasks=1))
    until(lambda: greeted == {(0, 0), (1, 0)})
    time.sleep(0.5)  # the first task ends
    used, began = time.process_time(), time.monotonic()
    time.sleep(2)
    used, passed = time.process_time() - used, time.monotonic() - began
    client.cancel()
    assert used < passed / 2, "the task asked the one before again and again"
