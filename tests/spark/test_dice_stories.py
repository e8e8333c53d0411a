"""Functions that decide by chance in three keyed levels, whose executors are killed: the output comes from one history.

A stage that Spark recomputes decides otherwise. What its first attempt has handed on, and what it has written to its
state, must then not be used beside what the second one did.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tests.programs.dice_job import LEVELS, NOTHING
from tests.spark.test_ledger_stories import Story
from tests.stories.process import run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.parametrize("hazard", ["kill-executor", "kill-executor-late"])
def test_an_executor_is_killed_in_each_of_three_levels(tmp_path: Path, hazard: str) -> None:
    """In the middle of a stage, and when the other tasks of its stage have ended."""
    story = Story(tmp_path, epochs=8)
    ended = run("dice_job.py", tmp_path, hazard)
    assert ended.code == 0, ended.output
    assert sorted(path.name for path in tmp_path.glob("struck-*")) == ["struck-1", "struck-2", "struck-3"]
    audit(tmp_path / "out", {payment for epoch in story.payments for payment, _, _ in epoch})


def audit(output: Path, payments: set[int]) -> None:
    """Each payment came once, and each key saw, in some order and without a gap, what was decided to go to it."""
    rows = ds.dataset(output, format="parquet").to_table().to_pylist()
    assert len(rows) == len(payments)
    assert {row["payment"] for row in rows} == payments
    for level in range(1, LEVELS + 1):
        key = "account" if level == 1 else f"route_{level - 1}"
        by_key: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            by_key[row[key]].append(row)
        for mine in by_key.values():
            mine.sort(key=lambda row: row[f"count_{level}"])
            assert [row[f"count_{level}"] for row in mine] == list(range(1, len(mine) + 1))
            decided = [NOTHING, *(row[f"route_{level}"] for row in mine)]
            assert [row[f"before_{level}"] for row in mine] == decided[:-1]
