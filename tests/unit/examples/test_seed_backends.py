"""The seeds' example of backends runs, and what it sets by older keys is what it sets by code."""

from __future__ import annotations

import pytest

from examples.seeds import backends


def test_the_example_runs_and_both_ways_come_to_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    backends.main()
    lines = capsys.readouterr().out.splitlines()

    assert [line.split(":")[0] for line in lines] == ["testing", "production", *["storage", "interval"] * 2]
    assert all("FileSystemCheckpointStorage" in line for line in lines if line.startswith("storage"))
    assert {line for line in lines if line.startswith("interval")} == {"interval:    30000 ms"}


def test_what_it_sets_is_valid() -> None:
    options = backends.configure("/somewhere").get_configuration()
    options.validate()
    assert options.to_dict()["state.backend"] == "filesystem"
