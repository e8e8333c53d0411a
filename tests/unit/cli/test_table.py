"""What verbs print of names and messages that others have chosen."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.output import print_json, print_table


def test_a_table_holds_with_any_name(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with open(1, "w", encoding="utf-8", closefd=False) as output:
        monkeypatch.setattr(sys, "stdout", output)
        print_table(("job", "says"), [("a\nb", "Größe \ud800 \x1b[2J")])
        print_json([{"says": "Größe \ud800"}])
    header, row, line = capfdbinary.readouterr().out.decode().splitlines()
    assert header.split() == ["job", "says"]
    assert row == r"a\nb  Größe \ud800 \x1b[2J"
    assert json.loads(line) == {"says": "Größe \ud800"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["savepoint", "--dispose", ""], "The path is empty"),
        (["run", "-s", "", __file__], "The path is empty"),
    ],
)
def test_what_names_nothing_is_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.output
