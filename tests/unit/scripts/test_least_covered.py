"""The table of the lines that no test runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from coverage import CoverageData

from scripts.least_covered import main


def test_modules_with_most_lines_that_no_test_runs_come_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "some"
    package.mkdir()
    data = CoverageData(str(tmp_path / ".coverage"))
    for name, lines, ran in ("half", 8, 4), ("whole", 6, 6), ("rarely", 6, 1), ("unseen", 5, 0):
        path = package / f"{name}.py"
        path.write_text("".join(f"a{number} = {number}\n" for number in range(lines)))
        if ran:
            data.add_lines({str(path): range(1, ran + 1)})
    data.write()

    assert main(tmp_path / ".coverage", package) == 0
    head, *modules = capsys.readouterr().out.splitlines()
    assert "44.0% of 25 lines" in head
    assert [" ".join(line.split()) for line in modules] == [
        "5 of 6 in some/rarely.py",
        "5 of 5 in some/unseen.py",
        "4 of 8 in some/half.py",
        "0 of 6 in some/whole.py",
    ]


def test_without_measurements_it_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path / ".coverage", tmp_path) == 1
    assert "make coverage" in capsys.readouterr().err
