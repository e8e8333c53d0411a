"""What verbs print: one JSON object a line, or a table for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import humanfriendly

from holdfast.types.encoder import finite


def echo(line: str) -> None:
    """Print a line. Half a character, of a name or a message, has no encoding; as an escape of JSON it has."""
    click.echo(line.encode(errors="backslashreplace").decode())


def print_json(rows: Iterable[Mapping[str, Any]]) -> None:
    """One object a line on standard output."""
    for row in rows:
        echo(json_text(row))


def json_text(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """JSON that every reader of it takes: NaN and the infinities, which it has not, are texts, as Spark writes them.

    Args:
        value: What is written.
        default: What stands for a value that JSON has not, as in `json.dumps`.
    """
    try:
        return json.dumps(value, ensure_ascii=False, default=default, allow_nan=False)
    except ValueError:
        return json.dumps(finite(value, json.dumps), ensure_ascii=False, default=default)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns of equal width, numbers to the right."""
    lines = [list(columns), *([_in_one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[position]) for line in lines) for position in range(len(columns))]
    numeric = [all(_is_number(line[position]) for line in lines[1:]) for position in range(len(columns))]
    for line in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        echo("  ".join(cells).rstrip())


def size(count: int | None) -> str:
    """A number of bytes for people."""
    return "-" if count is None else humanfriendly.format_size(count, binary=True)


def moment(milliseconds: int | None) -> str:
    """A time for people, in UTC."""
    if milliseconds is None:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:-6] + "Z"


def _in_one_line(cell: str) -> str:
    """What jobs are called, and say, without what would break the table."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in cell)


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell == "-"
