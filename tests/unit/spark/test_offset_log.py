"""Positions of Spark's sources, rewritten for another plan; no Spark runs here."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import ConfigurationError, RestoreError
from holdfast.runtime.graph.source_positions import PlannedLine, lines_of, rearranged

SETTINGS = '{"batchWatermarkMs":0}'


def entry(*lines: str) -> str:
    return "\n".join(["v1", SETTINGS, *lines])


def positions(**offsets: str) -> dict[str, Any]:
    texts = {name.removeprefix("n"): text for name, text in offsets.items()}
    sources = {"0/0": {"path": "x0"}, "1/0": {"path": "x1"}, "10/0": {"path": "x10"}}
    return {"batch_id": max(map(int, texts)), "offsets": texts, "sources": sources}


BOTH = positions(n6=entry("a6", "b6"), n7=entry("a7", "b7"))


def test_lines_and_folders_go_with_their_inputs_and_new_ones_have_none() -> None:
    plan = [PlannedLine("b", 0, 1), PlannedLine("new", 1, None), PlannedLine("a", 2, 0)]
    assert rearranged(BOTH, [0, 1], plan) == {
        "batch_id": 7,
        "offsets": {"6": entry("b6", "-", "a6"), "7": entry("b7", "-", "a7")},
        "sources": {"0/0": {"path": "x1"}, "2/0": {"path": "x0"}},
    }


def test_what_is_dropped_leaves_every_entry_and_its_folder() -> None:
    assert rearranged(BOTH, [0, 1], [PlannedLine("b", 0, 1)]) == {
        "batch_id": 7,
        "offsets": {"6": entry("b6"), "7": entry("b7")},
        "sources": {"0/0": {"path": "x1"}},
    }


def test_without_anything_to_go_on_from_there_is_nothing() -> None:
    assert rearranged(BOTH, [0, 1], [PlannedLine("new", 0, None)]) is None


def test_one_frame_becomes_two_and_two_of_one_place_become_one() -> None:
    one = positions(n7=entry("a7", "a7"))
    parted = rearranged(one, [0, 0], [PlannedLine("a", 0, 0), PlannedLine("b", 1, 1)])
    assert parted is not None
    assert parted["sources"] == {"0/0": {"path": "x0"}, "1/0": {"path": "x0"}}

    for other in (PlannedLine("b", 0, 1), PlannedLine("new", 0, None)):
        with pytest.raises(RestoreError, match="one frame"):
            rearranged(BOTH, [0, 1], [PlannedLine("a", 0, 0), other])


def test_what_reads_elsewhere_has_no_last_batch() -> None:
    plan = [PlannedLine("a", 0, 0, elsewhere=True), PlannedLine("b", 1, 1)]
    found = rearranged(BOTH, [0, 1], plan)
    assert found is not None
    assert found["offsets"] == {"6": entry("a7", "b6"), "7": entry("a7", "b7")}
    first = rearranged(positions(n0=entry("a0", "b0")), [0, 1], plan)
    assert first is not None
    assert (first["batch_id"], first["offsets"]) == (1, {"0": entry("a0", "b0"), "1": entry("a0", "b0")})


def test_a_log_of_another_form_is_refused() -> None:
    assert lines_of(BOTH) == 2
    with pytest.raises(ConfigurationError, match=r"'v2'.*enableSourceEvolution"):
        lines_of(positions(n3="v2\n{}\n{}"))
