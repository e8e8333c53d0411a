"""`holdfast checkpoints DIR`: the completed checkpoints of the jobs in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import click

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint, directory_of
from holdfast.checkpoint.recovery.retained import readable
from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.job_directories import job_directories
from holdfast.cli.registers import Registers, where_option
from holdfast.cli.table import moment, print_json, print_table, size
from holdfast.errors import HoldfastError
from holdfast.storage.job.job_directory import JobDirectory
from holdfast.storage.register.register_state import CheckpointPointer, RegisterState

COLUMNS = ("job", "id", "epoch", "completed at", "bytes", "new bytes", "operators", "status", "path")


@click.command()
@click.argument("directory", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line.")
@where_option
def checkpoints(directory: str, as_json: bool, properties: tuple[str, ...]) -> None:
    """Lists the retained completed checkpoints in DIR, oldest first.

    DIR is the directory of a job, or the one set as execution.checkpointing.dir. Status: COMPLETED, or DAMAGED with the
    reason on standard error.
    """
    with errors_to_exit_codes():
        with closing(Registers(properties)) as registers:
            rows = [row for found in job_directories(directory, registers) for row in _rows(*found)]
        if as_json:
            print_json(rows)
        else:
            print_table(COLUMNS, map(_cells, rows))


def _rows(directory: JobDirectory, state: RegisterState) -> Iterator[dict[str, Any]]:
    for pointer, found in readable(directory, state):
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


def _cells(row: dict[str, Any]) -> list[str]:
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
