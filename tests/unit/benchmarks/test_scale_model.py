"""The model of docs/scale.md: it fits what was measured, and grows as the page says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scale_model import Shape, held, predict

WIDE = Shape(rows=20_000_000, keys=10**9, width=200, levels=3, cores=200)


@pytest.mark.parametrize("line", held(), ids=lambda line: f"{line['what']}, {line['of']}")
def test_the_model_is_within_a_quarter_of_what_was_measured(line: dict[str, float]) -> None:
    assert 0.75 < line["model"] / line["measured"] < 1.25


def test_markers_grow_with_the_square_of_the_width_and_nothing_else_does() -> None:
    narrow, wide = predict(WIDE), predict(replace(WIDE, width=1000, cores=1000))
    grown = {name: wide[name] / value for name, value in narrow.items() if value}
    assert grown["marker_bytes"] == grown["shuffled_marker_bytes"] == pytest.approx(25)
    linear = ("driver_ms", "report_bytes", "message_bytes", "document_bytes", "files")
    assert all(4.9 < grown[name] < 5.1 for name in linear)
    assert grown["rows_ms"] == pytest.approx(1 / 5)


def test_a_key_that_comes_often_is_written_once_and_all_keys_at_most() -> None:
    assert predict(Shape(rows=10**6, keys=10, entry=1))["run_bytes"] == pytest.approx(10)
    assert predict(Shape(rows=1000, keys=10**10, entry=1))["run_bytes"] == pytest.approx(1000, rel=1e-4)


def test_state_that_fits_into_memory_is_not_searched_for() -> None:
    assert predict(Shape(keys=10**6, cores=2, cached=500_000))["cold_ms"] == 0
    assert predict(Shape(keys=10**8))["cold_ms"] > predict(Shape(keys=10**7))["cold_ms"] > 0
