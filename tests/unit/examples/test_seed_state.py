"""The seeds' examples of operator state run, here without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.seeds import broadcast, evolution, stateful_map
from holdfast.errors import StateMigrationError
from tests.stories import journal
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, run


def test_a_stateful_map_counts_and_goes_on_after_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = [["kelp", "rock"], ["kelp"], ["kelp", "rock"]]
    for until in (2, 3):
        program = Program()
        stateful_map.define(program.source("words", "string")).sink_to(Journal(tmp_path / "out"))
        run(program, tmp_path / "job", epochs("words", batches[:until]), parallelism=until)
    assert sorted(journal.read(tmp_path / "out")) == [
        "kelp (processed 1 times)",
        "kelp (processed 2 times)",
        "kelp (processed 3 times)",
        "rock (processed 1 times)",
        "rock (processed 2 times)",
    ]
    said = capsys.readouterr().out
    assert "Taking snapshot for checkpoint: 1" in said and "Restoring state from checkpoint 2" in said


def test_configuration_in_broadcast_state(tmp_path: Path) -> None:
    program = Program()
    words, configurations = program.source("words", "string"), program.source("configurations")
    words.map(broadcast.Configured({"greeting": "Hello"}), "string").sink_to(Journal(tmp_path / "given"))
    broadcast.define(words, configurations).sink_to(Journal(tmp_path / "streamed"))
    inputs = [
        {"words": ["kelp", "rock"]},
        {"words": ["kelp", "rock"], "configurations": [{"greeting": "Ahoy"}]},
        {"words": ["kelp"], "configurations": []},
    ]
    run(program, tmp_path / "job", inputs)
    assert sorted(journal.read(tmp_path / "given")) == [*["Hello kelp"] * 3, *["Hello rock"] * 2]
    assert sorted(journal.read(tmp_path / "streamed")) == ["Ahoy kelp", "Ahoy kelp", "Ahoy rock", "kelp?", "rock?"]


def test_a_serializer_changes_and_the_state_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evolution.main()
    expected = [
        "kelp 1, before it nothing that is known",
        "krill 2, before it nothing that is known",
        "kraken 3, before it nothing that is known",
        "kelp 4, before it kraken",
    ]
    assert capsys.readouterr().out.splitlines() == expected
    batches = [["kelp", "krill"], ["kraken"], ["kelp"]]
    for until, version in ((1, 1), (3, 2)):
        program = Program()
        words = program.source("words", "string")
        evolution.define(words, version).sink_to(Journal(tmp_path / "out"))
        run(program, tmp_path / "job", epochs("words", batches[:until]))
    assert sorted(journal.read(tmp_path / "out")) == sorted(expected)
    with pytest.raises(StateMigrationError, match="newer than this program"):
        program = Program()
        evolution.define(program.source("words", "string"), 1).sink_to(Journal(tmp_path / "out"))
        run(program, tmp_path / "job", epochs("words", [*batches, ["kelp"]]))
