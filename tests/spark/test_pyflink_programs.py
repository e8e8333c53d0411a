"""Short PyFlink programs, with `pyflink` replaced by `holdfast` in their imports, print what PyFlink has printed.

What PyFlink printed was recorded by `scripts/record_pyflink.py`. Where something else is printed here, the program says
why and the test has what.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pyflink_programs import Program, programs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SHORT = (
    "state/first_of_each",
    "two_inputs/rides_and_fares",
    "streams/union_and_split",
    "time/alert_after_silence",
    "triggers/early_results",
    "windows/sessions_with_state",
)
"""One of each kind; `make test-all` runs the others."""

OTHERS = [program.name for program in programs() if program.name not in SHORT]


def printed(program: Program, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> list[str]:
    copy = place / program.path.name
    copy.write_text(program.replaced())
    monkeypatch.setattr(sys, "argv", [str(copy)])
    monkeypatch.chdir(place)
    capsys.readouterr()
    runpy.run_path(str(copy), run_name="__main__")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", SHORT)
def test_a_program_prints_what_it_prints_on_flink(
    spark: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(name)
    lines = printed(program, tmp_path, monkeypatch, capsys)
    assert program.arranged(lines) == program.arranged(program.expected())


@pytest.mark.parametrize("name", OTHERS)
def test_another_program_prints_what_it_prints_on_flink(
    spark: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    test_a_program_prints_what_it_prints_on_flink(spark, name, tmp_path, monkeypatch, capsys)
