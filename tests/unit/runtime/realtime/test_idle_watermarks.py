"""The watermark behind several producers, some of which are idle or at the end of time."""

from __future__ import annotations

import pytest

from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.realtime.message import IDLE, least_watermark


@pytest.mark.parametrize(
    ("known", "least"),
    [
        ([5, 7], 5),
        ([IDLE, 7], 7),
        ([IDLE, IDLE], IDLE),
        ([MAX_WATERMARK, 7], 7),
        ([MAX_WATERMARK, MAX_WATERMARK], MAX_WATERMARK),
        ([MAX_WATERMARK, IDLE], IDLE),
        ([MAX_WATERMARK, IDLE, 7], 7),
        ([MIN_WATERMARK, IDLE], MIN_WATERMARK),
    ],
)
def test_one_that_is_idle_keeps_event_time_from_its_end(known: list[int], least: int) -> None:
    assert least_watermark(known) == least
    assert least_watermark(known[::-1]) == least
