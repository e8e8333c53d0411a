"""What sessions of fuzzing have done is added up in a table."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Barrier

import pytest

from tests.fuzz import campaign
from tests.fuzz.campaign import BEGIN, END, TABLE, Total, added, totals_in
from tests.fuzz.targets import KINDS, NAMES

PYTHON = sys.executable
PAGE = f"# Fuzzing\n\n{BEGIN}{END}\n\nMore.\n"


def test_a_run_is_added_to_those_before_it_and_nothing_else_is_changed() -> None:
    page = added(PAGE, "ledger", Total(1, 50, 1_000_000, 1, "2026-11-25, 0a1b2c3"))
    page = added(page, "frame", Total(1, 9, 2_000, 0, "2026-11-25, 0a1b2c3"))
    page = added(page, "ledger", Total(1, 3_600, 5_000_000, 0, "2026-11-26, 4d5e6f7"))
    kinds, _, table = page.partition(BEGIN)[2].partition(END)[0].partition("\n\n")
    assert "| wire frames | frame, query_answer, query_registration | 0.1 | 2,000 | 0 |" in kinds.splitlines()
    assert table.splitlines()[2:] == [
        "| frame | 1 | 9 | 2,000 | 0 | 2026-11-25, 0a1b2c3 |",
        "| ledger | 2 | 3,650 | 6,000,000 | 1 | 2026-11-26, 4d5e6f7 |",
        "| all | 3 | 3,659 | 6,002,000 | 1 | 2 targets |",
    ]
    assert page.startswith("# Fuzzing\n\n") and page.endswith(f"{END}\n\nMore.\n")


def test_the_table_that_is_kept_has_targets_that_there_are() -> None:
    assert totals_in(TABLE.read_text("utf-8")).keys() <= set(NAMES)


@pytest.mark.parametrize(
    ("program", "inputs", "defects"),
    [
        ("print('stat::number_of_executed_units: 77')", 77, 0),
        ("print('DEFECT one'); print('DEFECT two'); print('stat::number_of_executed_units:  5')", 5, 2),
        ("import os; print('a line', flush=True); os.abort()", 0, 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 0, 1),
    ],
)
def test_a_run_counts_as_it_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, inputs: int, defects: int
) -> None:
    total = _run_of(program, tmp_path, monkeypatch)
    assert total is not None
    assert (total.runs, total.inputs, total.defects) == (1, inputs, defects)


def test_a_run_that_hangs_is_a_defect_and_one_that_has_got_no_processor_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(campaign, "SLACK", 4)
    hung = _run_of("while True: pass", tmp_path, monkeypatch)
    assert hung is not None
    assert hung.defects == 1
    assert _run_of("import time; time.sleep(60)", tmp_path, monkeypatch) is None


def _run_of(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Total | None:
    fuzzer = folder / "fuzzer"
    fuzzer.write_text(f"#!{PYTHON}\n{program}\n")
    fuzzer.chmod(0o755)
    monkeypatch.setattr(campaign.sys, "executable", str(fuzzer))
    return campaign.run("ledger", 1)


def test_who_has_had_least_is_next_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page, now, ran = tmp_path / "fuzz.md", [0.0], []
    page.write_text(added(added(PAGE, "frame", Total(1, 100)), "ledger", Total(1, 30)))

    def run(name: str, seconds: int) -> Total:
        now[0] += seconds
        ran.append((name, seconds))
        return Total(1, seconds // 2)

    monkeypatch.setattr(campaign, "TABLE", page)
    monkeypatch.setattr(campaign, "run", run)
    monkeypatch.setattr(campaign.time, "monotonic", lambda: now[0])
    campaign.campaign(["frame", "ledger", "option"], 60, minutes=4.8)
    assert ran == [("option", 60), ("ledger", 60), ("option", 60), ("ledger", 60), ("option", 48)]
    assert {name: total.seconds for name, total in totals_in(page.read_text()).items()} == {
        "frame": 100, "ledger": 90, "option": 84,
    }  # fmt: skip


def test_a_kind_of_two_parsers_gets_as_much_as_one_of_five(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page, now = tmp_path / "fuzz.md", [0.0]
    page.write_text(PAGE)

    def run(name: str, seconds: int) -> Total:
        now[0] += seconds
        return Total(1, seconds)

    monkeypatch.setattr(campaign, "TABLE", page)
    monkeypatch.setattr(campaign, "run", run)
    monkeypatch.setattr(campaign.time, "monotonic", lambda: now[0])
    campaign.campaign([*KINDS["run files"], *KINDS["queries"]], 60, minutes=20)
    had = {name: total.seconds for name, total in totals_in(page.read_text()).items()}
    assert had == dict.fromkeys(KINDS["run files"], 120) | dict.fromkeys(KINDS["queries"], 300)


def test_several_at_one_time_are_each_done_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page, together = tmp_path / "fuzz.md", Barrier(2, timeout=30)
    page.write_text(PAGE)

    def run(name: str, seconds: int) -> Total:
        together.wait()
        return Total(1, seconds, 10, int(name == "frame"))

    monkeypatch.setattr(campaign, "TABLE", page)
    monkeypatch.setattr(campaign, "run", run)
    assert campaign.campaign(["frame", "ledger", "option", "metadata"], 60, beside=2) == 1
    totals = totals_in(page.read_text())
    assert {(total.runs, total.seconds, total.inputs) for total in totals.values()} == {(1, 60, 10)} and len(
        totals
    ) == 4
