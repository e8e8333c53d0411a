"""Tasks that share a thread: what arrives for each of them, and whose turn ends then."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.runtime.realtime.task import _Inbox


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
