"""What sessions of fuzzing have done is added up in a table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fuzz import campaign
from tests.fuzz.campaign import BEGIN, END, TABLE, Total, added
from tests.fuzz.targets import NAMES

PAGE = f"# Fuzzing\n\n{BEGIN}{END}\n\nMore.\n"


def test_a_run_is_added_to_those_before_it_and_nothing_else_is_changed() -> None:
    page = added(PAGE, "ledger", Total(1, 50, 1_000_000, 1, "2026-11-25, 0a1b2c3"))
    page = added(page, "frame", Total(1, 9, 2_000, 0, "2026-11-25, 0a1b2c3"))
    page = added(page, "ledger", Total(1, 3_600, 5_000_000, 0, "2026-11-26, 4d5e6f7"))
    table = page.partition(BEGIN)[2].partition(END)[0].splitlines()[2:]
    assert table == [
        "| frame | 1 | 9 | 2,000 | 0 | 2026-11-25, 0a1b2c3 |",
        "| ledger | 2 | 3,650 | 6,000,000 | 1 | 2026-11-26, 4d5e6f7 |",
        "| all | 3 | 3,659 | 6,002,000 | 1 | 2 targets |",
    ]
    assert page.startswith("# Fuzzing\n\n") and page.endswith(f"{END}\n\nMore.\n")


def test_the_table_that_is_kept_has_targets_that_there_are() -> None:
    table = TABLE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    named = {line.split("|")[1].strip() for line in table.splitlines()[2:]}
    assert named <= {*NAMES, "all"} and "all" in named


@pytest.mark.parametrize(
    ("program", "inputs", "defects"),
    [
        ("print('stat::number_of_executed_units: 77')", 77, 0),
        ("print('DEFECT one'); print('DEFECT two'); print('stat::number_of_executed_units:  5')", 5, 2),
        ("import os; print('a line', flush=True); os.abort()", 0, 1),
    ],
)
def test_a_run_counts_as_it_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, inputs: int, defects: int
) -> None:
    fuzzer = tmp_path / "fuzzer"
    fuzzer.write_text(f"#!{sys.executable}\n{program}\n")
    fuzzer.chmod(0o755)
    monkeypatch.setattr(campaign.sys, "executable", str(fuzzer))
    total = campaign.run("ledger", 1)
    assert (total.runs, total.inputs, total.defects) == (1, inputs, defects)
