"""`holdfast checkpoints`, `inspect` and `diff`: completed checkpoints and what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Any

import click

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, directory_of, try_read_retained
from holdfast.cli.locate import Registers, checkpoint_at, job_directories, where_option
from holdfast.cli.output import errors_to_exit_codes, examples, moment, print_json, print_table, size
from holdfast.cli.state import show_key_differences
from holdfast.errors import HoldfastError
from holdfast.state_processor import SavepointReader
from holdfast.state_processor.differences import Difference, StateSummary, differences, summaries
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import CheckpointPointer, RegisterState
from holdfast.types.key_codec import describe_key_type

CHECKPOINT_COLUMNS = ("job", "id", "epoch", "completed at", "bytes", "new bytes", "operators", "status", "path")
INSPECT_COLUMNS = ("uid", "state", "kind", "type", "rows", "bytes", "key group skew")
DIFF_COLUMNS = ("uid", "state", "change", "what", "before", "after")


@click.command(
    epilog=examples(
        "holdfast checkpoints /data/checkpoints",
        "holdfast checkpoints s3://bucket/checkpoints -D s3.endpoint=http://localhost:9000 --json",
    )
)
@click.argument("directory", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line.")
@where_option
def checkpoints(directory: str, as_json: bool, properties: tuple[str, ...]) -> None:
    """List the completed checkpoints in DIR.

    Only retained checkpoints are listed, oldest first. DIR is the directory of a job, or the one set as
    execution.checkpointing.dir. The status is COMPLETED, or DAMAGED, with the reason on standard error.
    """
    with errors_to_exit_codes():
        with closing(Registers(properties)) as registers:
            rows = [row for found in job_directories(directory, registers) for row in _checkpoint_rows(*found)]
        if as_json:
            print_json(rows)
        else:
            print_table(CHECKPOINT_COLUMNS, map(_checkpoint_cells, rows))


def _checkpoint_rows(directory: JobDirectory, state: RegisterState) -> Iterator[dict[str, Any]]:
    for pointer, found in try_read_retained(directory, state):
        path = directory_of(directory.absolute(pointer.path))
        if isinstance(found, HoldfastError):
            click.echo(f"{path}: {found}", err=True)
            yield _damaged(directory, pointer, path)
        else:
            yield _completed(found)


def _completed(checkpoint: CompletedCheckpoint) -> dict[str, Any]:
    metadata = checkpoint.metadata
    return {
        "id": metadata.checkpoint_id,
        "epoch": metadata.epoch,
        "completed_at": metadata.completed_at,
        "path": checkpoint.path,
        "bytes": metadata.state_size + checkpoint.get_metadata_size(),
        "new_bytes": metadata.new_size + checkpoint.get_metadata_size(),
        "operators": [operator.uid for operator in metadata.operators],
        "status": "COMPLETED",
        "type": metadata.properties.get("type"),
        "job_id": metadata.job_id,
        "job_name": metadata.job_name,
    }


def _damaged(directory: JobDirectory, pointer: CheckpointPointer, path: str) -> dict[str, Any]:
    return {
        "id": pointer.checkpoint_id,
        "epoch": None,
        "completed_at": None,
        "path": path,
        "bytes": None,
        "new_bytes": None,
        "operators": None,
        "status": "DAMAGED",
        "type": None,
        "job_id": str(directory.job_id),
        "job_name": None,
    }


def _checkpoint_cells(row: dict[str, Any]) -> list[str]:
    operators = row["operators"]
    return [
        row["job_name"] or row["job_id"],
        str(row["id"]),
        "-" if row["epoch"] is None else str(row["epoch"]),
        moment(row["completed_at"]),
        size(row["bytes"]),
        size(row["new_bytes"]),
        "-" if operators is None else str(len(operators)),
        row["status"],
        row["path"],
    ]


@click.command(
    epilog=examples(
        "holdfast inspect /data/savepoints/savepoint-3f2a1c-9d", "holdfast inspect /data/checkpoints --json"
    )
)
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line.")
@where_option
def inspect(path: str, as_json: bool, properties: tuple[str, ...]) -> None:
    """Show the states of a checkpoint or savepoint.

    PATH is the directory of a checkpoint or savepoint, its _metadata file, or the directory of a job. For a job, the
    newest completed checkpoint is shown.
    """
    with errors_to_exit_codes():
        checkpoint = checkpoint_at(path, properties)
        found = list(summaries(checkpoint))
        if as_json:
            print_json(asdict(summary) for summary in found)
            return
        metadata = checkpoint.metadata
        click.echo(
            f"checkpoint {metadata.checkpoint_id} of {metadata.job_name!r} ({metadata.job_id}), epoch "
            f"{metadata.epoch}, completed {moment(metadata.completed_at)}, {checkpoint.path}"
        )
        print_table(INSPECT_COLUMNS, map(_state_cells, found))


def _state_cells(summary: StateSummary) -> list[str]:
    return [
        summary.uid,
        summary.state,
        summary.kind,
        summary.type,
        str(summary.rows),
        size(summary.bytes),
        f"{summary.key_group_skew:.2f}",
    ]


@click.command(
    epilog=examples(
        "holdfast diff /data/savepoints/savepoint-3f2a1c-9d /data/checkpoints",
        "holdfast diff A B --keys --uid aircraft --state last --to changed.parquet",
    )
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line, one for each difference.")
@click.option("--keys", "by_keys", is_flag=True, help="Show the keys that were added, removed or changed.")
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
    """Show what differs between two checkpoints.

    A and B are checkpoints or savepoints. Each is a directory, a _metadata file, or the directory of a job, whose
    newest completed checkpoint is used. They may belong to different jobs; operators are matched by uid. Equal parts
    are not shown.
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
            print_table(DIFF_COLUMNS, [cells for difference in found for cells in _difference_rows(difference)])
        else:
            click.echo("no difference")


def _difference_rows(difference: Difference) -> Iterator[list[str]]:
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
        return "" if fact is None else describe_key_type(fact)
    return size(fact) if name == "bytes" else str(fact)
