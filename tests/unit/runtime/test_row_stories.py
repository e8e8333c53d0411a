"""Stories of jobs once more, with elements that cross the exchanges between Python stages as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.runtime.exchange.layout import MessageWriter
from holdfast.runtime.job.options import PACKED_EXCHANGE
from holdfast.runtime.task import stage_task
from tests.stories import functions
from tests.unit.runtime.test_amnesia import *  # noqa: F403
from tests.unit.runtime.test_broadcast import *  # noqa: F403
from tests.unit.runtime.test_event_time import *  # noqa: F403
from tests.unit.runtime.test_graph_shapes import *  # noqa: F403
from tests.unit.runtime.test_interval_join import *  # noqa: F403
from tests.unit.runtime.test_keyed_shapes import *  # noqa: F403
from tests.unit.runtime.test_mixed_attempts import *  # noqa: F403
from tests.unit.runtime.test_transforms import *  # noqa: F403
from tests.unit.runtime.test_two_inputs import *  # noqa: F403
from tests.unit.runtime.test_window_join import *  # noqa: F403

pytestmark = pytest.mark.long

NUMBERS = "word string, number bigint"


@pytest.fixture(autouse=True)
def rows() -> Iterator[None]:
    """The default of the option is the other one."""
    object.__setattr__(PACKED_EXCHANGE, "default", False)
    yield
    object.__setattr__(PACKED_EXCHANGE, "default", True)


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "messages"])
def test_these_stories_are_told_in_rows(place: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:  # noqa: F405
    packers: list[MessageWriter] = []

    class Noted(MessageWriter):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            packers.append(self)

    monkeypatch.setattr(stage_task, "MessageWriter", Noted)
    if packed:
        object.__setattr__(PACKED_EXCHANGE, "default", True)
    test_two_keyed_operators_on_one_stream(place / "ordered")  # noqa: F405
    assert not packers, "what an operator orders are rows"
    program = Program()  # noqa: F405
    words = program.source("lines", "line string").flat_map(lambda row: row.line.split(), "string")
    by_word = words.key_by(lambda word: word, "string")
    numbered_words = by_word.process(functions.Numbering(lambda word, number: (word, number)), NUMBERS)
    numbered_words.uid("words").sink_to(Journal(place / "out"))  # noqa: F405
    run(program, place / "job", epochs("lines", [[("kelp rock",)], [("kelp kelp",)]]))  # noqa: F405
    assert bool(packers) == packed
    assert as_tuples(journal.read(place / "out")) == [("kelp", 1), ("kelp", 2), ("kelp", 3), ("rock", 1)]  # noqa: F405
