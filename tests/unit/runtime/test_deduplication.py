"""`deduplicate()`: the first row of each key, for ever or for a time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import DataStream
from holdfast.datastream.state import StateTtlConfig
from holdfast.errors import ConfigurationError
from holdfast.kernel.clock import ManualClock
from tests.stories import journal
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, LocalEngine, Program, epochs, run

ROW = "id string, n bigint"
MINUTE = 60_000


def emitted(place: Path, batches: list[list[Any]], *, pause: int = 0, **arguments: Any) -> list[int]:
    """The numbers of the rows that pass, where each epoch is some milliseconds after the one before."""
    clock = ManualClock()

    class Pausing(LocalEngine):
        def execute(self, *given: Any) -> Any:
            result = super().execute(*given)
            clock.advance(pause)
            return result

    program = Program()
    rows: DataStream = program.source("in", ROW).key_by("id").deduplicate(**arguments)
    rows.uid("first").sink_to(Journal(place / "out")).uid("out")
    run(program, place / "job", epochs("in", batches), RESTARTING, clock=clock, engine=Pausing)
    return sorted(row[1] for row in journal.as_tuples(journal.read(place / "out")))


BATCHES = [[("a", 1), ("b", 2), ("a", 3)], [("a", 4), ("c", 5)], [("a", 6), ("b", 7)], [("a", 8)]]


def test_a_key_is_known_for_ever_or_for_the_time_to_live(place: Path) -> None:
    assert emitted(place / "ever", BATCHES, pause=10 * MINUTE) == [1, 2, 5]
    assert emitted(place / "hour", BATCHES, pause=10 * MINUTE, ttl="1 h") == [1, 2, 5]
    # A duplicate does not extend the time: `a` of minute 0 is forgotten at minute 20, and `b` too.
    assert emitted(place / "some", BATCHES, pause=10 * MINUTE, ttl="15 min") == [1, 2, 5, 6, 7]


@pytest.mark.parametrize(
    "ttl",
    [900_000, timedelta(minutes=15), StateTtlConfig.new_builder("15 min").build()],
    ids=["milliseconds", "timedelta", "configuration"],
)
def test_the_time_to_live_is_any_duration(place: Path, ttl: Any) -> None:
    assert emitted(place, BATCHES, pause=10 * MINUTE, ttl=ttl) == [1, 2, 5, 6, 7]


def test_a_configuration_may_count_reads(place: Path) -> None:
    ttl = StateTtlConfig.new_builder("15 min").update_ttl_on_read_and_write().build()
    assert emitted(place, BATCHES, pause=10 * MINUTE, ttl=ttl) == [1, 2, 5, 7]


def test_a_time_to_live_can_be_added_to_a_job_that_has_state(place: Path) -> None:
    assert emitted(place, BATCHES[:1]) == [1, 2]
    assert emitted(place, BATCHES[:2], ttl="1 h") == [1, 2, 5]


@pytest.mark.parametrize("ttl", [0, -1, "soon", object()])
def test_what_is_no_duration_is_refused(ttl: Any) -> None:
    with pytest.raises(ConfigurationError):
        Program().source("in", ROW).key_by("id").deduplicate(ttl=ttl)
