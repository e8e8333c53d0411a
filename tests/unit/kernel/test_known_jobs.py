"""The error for a job that does not exist."""

from __future__ import annotations

from holdfast.kernel.failure_text import unknown_job


def test_it_has_what_was_typed_what_is_near_and_what_there_is() -> None:
    jobs = [("0" * 32, "word count"), ("f" * 32, "payments")]
    text = unknown_job("wordcuont", jobs, " in '/data'")
    assert text == (
        f"There is no job 'wordcuont' in '/data'. Did you mean 'word count'? Jobs: {'0' * 32} (word count), "
        f"{'f' * 32} (payments)."
    )
    assert unknown_job("x", []) == "There is no job 'x'. There are no jobs."
    assert "Did you mean" not in unknown_job("something else", jobs)


def test_it_stays_short_with_many_jobs_and_a_long_name() -> None:
    many = [(f"{number:032}", f"job {number}") for number in range(500)]
    text = unknown_job("y" * 10_000, many)
    assert len(text) < 1500
    assert text.endswith("and 490 more.")
