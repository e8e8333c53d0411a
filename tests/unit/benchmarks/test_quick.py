"""What `make bench-quick` prints and commits; the contests themselves are replaced by what they return."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import quick
from benchmarks.harness import contest

Quick = Callable[[dict[str, float]], dict[str, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Quick:
    """Runs it with seconds an epoch of some engines, one of all others, and gives what it said of each ratio."""
    monkeypatch.setattr(quick, "COMMITTED", tmp_path / "quick.json")

    def ran(seconds: dict[str, float]) -> dict[str, dict[str, Any]]:
        def hold(names: Sequence[str], workload: Any, course: Any, cache: Path) -> list[contest.Result]:
            return [contest.Result(name, 100, (seconds.get(name, 1.0),)) for name in names]

        monkeypatch.setattr(contest, "hold", hold)
        assert quick.main(["--json", "--commit"]) == 0
        lines = map(json.loads, capsys.readouterr().out.splitlines())
        return {line["ratio"]: line for line in lines}

    return ran


def test_ratios_stand_beside_those_that_were_committed_before(run: Quick) -> None:
    first = run({"floor": 2.0})
    assert first["keyed_count, rows / floor"] == {"ratio": "keyed_count, rows / floor", "now": 2.0, "committed": None}
    second = run({"floor": 2.0, "holdfast": 4.0})
    assert second["keyed_count, rows / floor"]["now"] == 0.5
    assert second["keyed_count, rows / floor"]["committed"] == 2.0
    assert second["keyed_count, event time and a timer a key / rows"]["now"] == 4.0


def test_what_is_committed_says_of_which_commit_and_machine_it_is(run: Quick) -> None:
    told = run({})
    written = json.loads(quick.COMMITTED.read_text())
    assert written["ratios"] == {name: line["now"] for name, line in told.items()}
    assert written["commit"]
    assert written["cores"] >= 1


def test_what_is_lower_than_before_is_marked(run: Quick, capsys: pytest.CaptureFixture[str]) -> None:
    run({})
    written = json.loads(quick.COMMITTED.read_text())
    written["ratios"]["chain, FileSource / floor"] = 1.5
    quick.COMMITTED.write_text(json.dumps(written))
    quick.main([])
    marked = [line for line in capsys.readouterr().out.splitlines() if line.endswith("  lower")]
    assert [line.split("  ")[0] for line in marked] == ["chain, FileSource / floor"]
