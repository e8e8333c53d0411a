"""What tasks leave in cycles is collected, and what they leave alive is not looked at after each of them."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from holdfast.runtime.task import garbage_collection
from holdfast.runtime.task.garbage_collection import collect_after_task


class Knot:
    """Something that only the cyclic collector can free."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    garbage_collection._next_full_collection = 0.0
    yield
    gc.unfreeze()


def test_live_objects_are_not_scanned_again_after_the_next_task() -> None:
    kept = [Knot() for _ in range(10_000)]
    assert len(gc.get_objects()) > len(kept)
    collect_after_task()
    assert len(gc.get_objects()) < 1_000
    collect_after_task()
    assert len(gc.get_objects()) < 1_000
    assert all(knot.self is knot for knot in kept)


def test_a_cycle_of_the_task_is_collected_at_its_end() -> None:
    collect_after_task()
    left = weakref.ref(Knot())
    collect_after_task()
    assert left() is None


def test_a_cycle_that_outlived_its_task_is_collected_by_a_full_collection() -> None:
    collect_after_task()
    knot = Knot()
    collect_after_task()
    frozen = weakref.ref(knot)
    del knot
    collect_after_task()
    assert frozen() is not None
    garbage_collection._next_full_collection = 0.0
    collect_after_task()
    assert frozen() is None


def test_looking_at_everything_takes_a_two_hundredth_of_the_time() -> None:
    began = time.monotonic()
    collect_after_task()
    took = time.monotonic() - began
    assert 0 < garbage_collection._next_full_collection - time.monotonic() <= 200 * took
