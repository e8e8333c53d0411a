"""Help as a user reads it on a terminal of 80 columns: whole summaries, and examples that the commands accept."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast.cli import main

WIDTH = 80


def walk(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and all below it, with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None and below.name == name
            yield from walk((*path, name), below)


COMMANDS = {" ".join(path): command for path, command in walk(("holdfast",), main)}


def help_of(name: str) -> str:
    result = CliRunner().invoke(main, [*name.split()[1:], "--help"], terminal_width=WIDTH)
    assert result.exit_code == 0, result.output
    return result.output


def examples_in(text: str) -> list[str]:
    _, _, examples = text.partition("  Examples:\n")
    return [line.strip() for line in examples.splitlines() if line.strip()]


def test_all_commands_are_known_here() -> None:
    assert {"holdfast", "holdfast run", "holdfast doctor", "holdfast state", "holdfast state sql"} <= COMMANDS.keys()
    assert len(COMMANDS) >= 28


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if isinstance(command, click.Group)])
def test_the_list_of_commands_has_the_whole_first_sentence_of_each(name: str) -> None:
    group = COMMANDS[name]
    assert isinstance(group, click.Group)
    text = help_of(name)
    assert "..." not in text.partition("Commands:")[2]
    for verb in group.list_commands(click.Context(group)):
        summary = (COMMANDS[f"{name} {verb}"].help or "").split("\n\n")[0]
        assert summary.endswith(".") and "\n" not in summary, f"{name} {verb}: {summary!r}"
        assert any(line.split(maxsplit=1) == [verb, summary] for line in text.splitlines()), f"{verb}: {summary}"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_help_ends_with_one_to_three_examples(name: str) -> None:
    found = examples_in(help_of(name))
    assert 1 <= len(found) <= 3
    assert all(line.split()[0] in ("holdfast", "cd") for line in found), found


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_accepts_its_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").touch()  # the program that examples name
    for example in examples_in(help_of(name)):
        for line in example.split(" && "):
            program, *arguments = shlex.split(line)
            if program != "holdfast":
                continue
            assert f"holdfast {' '.join(arguments)} ".startswith(f"{name} "), "the example is one of this command"
            parse(main, "holdfast", arguments)


def parse(command: click.Command, name: str, arguments: list[str], parent: click.Context | None = None) -> None:
    """Parses as the command line does, and runs nothing."""
    context = command.make_context(name, arguments, parent)
    if isinstance(context.command, click.Group):
        verb, below, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert verb is not None and below is not None
        parse(below, verb, rest, context)


def test_an_example_with_an_unknown_option_would_be_noticed() -> None:
    with pytest.raises(click.UsageError, match="No such option"):
        parse(main, "holdfast", ["state", "sql", "--jsno", "PATH", "select 1"])


def test_the_help_imports_neither_arrow_nor_any_command() -> None:
    code = (
        "import sys\nfrom holdfast.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith(('holdfast.', 'numpy', 'pyarrow'))))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "['holdfast.cli']"
