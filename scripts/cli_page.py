"""Writes docs/reference/cli.md from the commands of `holdfast`.

    python scripts/cli_page.py [--check]

With --check nothing is written; the exit code says whether the page is current.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli import main as holdfast

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"

INTRODUCTION = """\
# Command line

This page is generated from the code: `python scripts/cli_page.py`. A test checks that it is current.

`pip install` puts the command `holdfast` on the path. [Operations](../operations.md) shows the commands at work.
`holdfast COMMAND --help` prints what is here.
"""


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description="Write docs/reference/cli.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is not current")
    check = parser.parse_args(arguments).check
    text = page(holdfast, "holdfast")
    if check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page(command: click.Group, name: str) -> str:
    """Return the page of a command with verbs."""
    context = click.Context(command, info_name=name)
    found = list(_commands(command, context))
    summaries = _table(
        ("command", "summary"),
        [(f"[`{inner.command_path}`](#{_anchor(inner)})", _escaped(_summary(verb))) for verb, inner in found],
    )
    sections = ["\n".join(_section(verb, inner)) for verb, inner in found]
    return "\n".join([INTRODUCTION, *summaries, "", *_paragraphs(command.epilog or ""), "\n".join(sections)])


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield command, inner
        if isinstance(command, click.Group):
            yield from _commands(command, inner)


def _section(command: click.Command, context: click.Context) -> Iterator[str]:
    depth = 2 if context.parent is None or context.parent.parent is None else 3
    yield f"{'#' * depth} {context.command_path}"
    yield ""
    yield "```text"
    yield " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield "```"
    yield ""
    yield from _paragraphs(command.help or "")
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    options = [record for record in records if record is not None and record[1] and "--help" not in record[0]]
    if options:
        yield from _table(("option", "meaning"), [(f"`{names}`", _escaped(text)) for names, text in options])
        yield ""
    yield from _paragraphs(command.epilog or "")


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; one that click does not wrap becomes a block of code with its heading."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text).partition("\f")[0].strip()):
        lines = paragraph.splitlines()
        if lines[:1] == ["\b"]:
            head, *rest = lines[1:]
            body = rest if rest and head.endswith(":") else lines[1:]
            if body is rest:
                yield from (head, "")
            yield from ("```text", *textwrap.dedent("\n".join(body)).splitlines(), "```", "")
        elif lines:
            yield textwrap.fill(_escaped(" ".join(lines)), 120, break_long_words=False, break_on_hyphens=False)
            yield ""


def _anchor(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _summary(command: click.Command) -> str:
    return command.get_short_help_str(limit=1000)


def _escaped(text: str) -> str:
    """Return text in which nothing outside of code is markup."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*<\[])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |"


if __name__ == "__main__":
    sys.exit(main())
