"""`holdfast diff A B`: what has become of each operator and state between two checkpoints or savepoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.job_directories import checkpoint_at
from holdfast.cli.registers import where_option
from holdfast.cli.state_tables import show_key_differences
from holdfast.cli.table import moment, print_json, print_table, size
from holdfast.state_processor import SavepointReader
from holdfast.state_processor.read.snapshot_difference import Difference, differences
from holdfast.types.key.key_codec import shown_key_type

COLUMNS = ("uid", "state", "change", "what", "before", "after")


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line, one for each difference.")
@click.option("--keys", "by_keys", is_flag=True, help="Show which keys of the states were added, removed and changed.")
@click.option("--uid", metavar="UID", help="With --keys: only this operator.")
@click.option("--state", metavar="STATE", help="With --keys: only this state.")
@click.option("--to", "target", metavar="FILE", help="With --keys, --uid and --state: write a Parquet file.")
@where_option
def diff(
    first: str,
    second: str,
    as_json: bool,
    by_keys: bool,
    uid: str | None,
    state: str | None,
    target: str | None,
    properties: tuple[str, ...],
) -> None:
    """Shows what differs between the checkpoints or savepoints A and B.

    Each is the directory of one, its _metadata file, or the directory of a job, whose newest completed checkpoint is
    taken. They may be of different jobs; operators are matched by uid. What is the same is not shown.
    """
    if not by_keys and (uid, state, target) != (None, None, None):
        raise click.UsageError("--uid, --state and --to go with --keys.")
    if target is not None and None in (uid, state):
        raise click.UsageError("--to writes the keys of one state: say which with --uid and --state.")
    with errors_to_exit_codes():
        if by_keys:
            one, other = (SavepointReader(None, checkpoint_at(path, properties)) for path in (first, second))
            show_key_differences(one, other, uid, state, target, as_json=as_json)
            return
        a, b = checkpoint_at(first, properties), checkpoint_at(second, properties)
        found = list(differences(a, b))
        if as_json:
            print_json(asdict(difference) for difference in found)
            return
        for letter, checkpoint in (("A", a), ("B", b)):
            metadata = checkpoint.metadata
            click.echo(
                f"{letter}: checkpoint {metadata.checkpoint_id} of {metadata.job_name!r}, epoch {metadata.epoch}, "
                f"completed {moment(metadata.completed_at)}, {size(metadata.state_size)}, {checkpoint.path}"
            )
        if found:
            print_table(COLUMNS, [cells for difference in found for cells in _rows(difference)])
        else:
            click.echo("no difference")


def _rows(difference: Difference) -> Iterator[list[str]]:
    before, after = difference.before or {}, difference.after or {}
    head = [difference.uid, difference.state or "", difference.change]
    for name in before or after or {"": None}:
        yield [*head, name, _shown(name, before), _shown(name, after)]
        head = ["", "", ""]


def _shown(name: str, facts: dict[str, Any]) -> str:
    if name not in facts:
        return ""
    fact = facts[name]
    if name == "key":
        return "" if fact is None else shown_key_type(fact)
    return size(fact) if name == "bytes" else str(fact)
