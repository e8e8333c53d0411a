"""A marker says who wrote the rows before it, in a few bytes, however many tasks there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.kernel.ids import new_nonce
from holdfast.runtime.exchange.task_report import NOTHING_READ, MarkerFormat, MarkerReader, digest_of, marker_head
from holdfast.runtime.graph.event_time import merge_observed

TIMES = st.integers(-(2**63), 2**63 - 1)
OBSERVED = st.dictionaries(st.sampled_from(["a", "b", "c"]), TIMES)


def read(form: MarkerFormat, *rows: bytes) -> MarkerReader:
    reader = MarkerReader(form)
    for row in rows:
        reader.add(row)
    return reader


def test_a_marker_has_24_bytes_and_event_time() -> None:
    own = marker_head(3, 70_000, new_nonce())
    assert len(MarkerFormat([]).marker(own, {})) == 24
    assert len(MarkerFormat(["a", "b"]).marker(own, {"b": 5})) == 24 + 2 * 9


@given(st.lists(OBSERVED, max_size=5))
def test_the_greatest_time_of_each_clock_arrives_the_least_one_that_there_is_too(told: list[dict[str, int]]) -> None:
    form = MarkerFormat(["c", "a", "b"])
    reader = read(form, *(form.marker(marker_head(0, at, "x"), observed) for at, observed in enumerate(told)))
    assert reader.observed() == merge_observed(*told)


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_each_content_goes_to_one_task_and_a_marker_to_each(tasks: int) -> None:
    form = MarkerFormat(["a"])
    senders = [form.marker(marker_head(0, at, f"attempt-{at}"), {}) for at in range(7)]
    sent = [form.rows(marker, f"content {at}".encode(), at, tasks) for at, marker in enumerate(senders)]
    readers = [read(form, *(rows[task] for rows in sent)) for task in range(tasks)]
    assert {reader.digest() for reader in readers} == {
        digest_of(marker_head(0, at, f"attempt-{at}") for at in range(7))
    }
    assert sorted(content for reader in readers for content in reader.reports()) == [
        f"content {at}".encode() for at in range(7)
    ]
    assert readers[0].read_attempts() == tuple((at, f"attempt-{at}") for at in range(7))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from("xy")), max_size=6), st.randoms())
def test_a_digest_identifies_the_read_markers_and_their_counts_in_any_order(
    parts: list[tuple[int, int, str]], luck: object
) -> None:
    heads = [marker_head(*part) for part in parts]
    shuffled = list(heads)
    luck.shuffle(shuffled)  # type: ignore[attr-defined]
    assert digest_of(shuffled) == digest_of(heads)
    assert (digest_of(heads) == NOTHING_READ) == (not heads)
    for at in range(len(heads)):
        assert digest_of([*heads[:at], *heads[at + 1 :]]) != digest_of(heads) != digest_of([*heads, heads[at]])


@pytest.mark.parametrize("row", [b"m", b"m" * 23, b"{" + b"x" * 40, b"\0" * 24])
def test_an_invalid_marker_is_rejected(row: bytes) -> None:
    with pytest.raises(ValueError, match="not a marker"):
        read(MarkerFormat([]), row)


@pytest.mark.parametrize("attempt", ["", "seventeen letters", "a\0", "ä"])
def test_an_attempt_fits_into_its_marker(attempt: str) -> None:
    with pytest.raises(ValueError):
        marker_head(0, 0, attempt)
