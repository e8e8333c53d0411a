"""`holdfast inspect PATH`: what a checkpoint or savepoint holds of each state."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict

import click

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.recovery import load
from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.job_directories import newest_checkpoint
from holdfast.cli.registers import Registers, where_option
from holdfast.cli.state_summary import StateSummary, summaries
from holdfast.cli.table import moment, print_json, print_table, size
from holdfast.storage.file_system import file_system_for, join
from holdfast.storage.job_directory import METADATA_NAME
from holdfast.storage.path import base_name

COLUMNS = ("uid", "state", "kind", "type", "rows", "bytes", "key group skew")


@click.command()
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line.")
@where_option
def inspect(path: str, as_json: bool, properties: tuple[str, ...]) -> None:
    """Shows every state of the checkpoint or savepoint at PATH.

    PATH is its directory or its _metadata file; of a job's directory the newest completed checkpoint is shown.
    """
    with errors_to_exit_codes():
        checkpoint = _find(path, properties)
        found = list(summaries(checkpoint))
        if as_json:
            print_json(asdict(summary) for summary in found)
            return
        metadata = checkpoint.metadata
        click.echo(
            f"checkpoint {metadata.checkpoint_id} of {metadata.job_name!r} ({metadata.job_id}), epoch "
            f"{metadata.epoch}, completed {moment(metadata.completed_at)}, {checkpoint.path}"
        )
        print_table(COLUMNS, map(_cells, found))


def _find(path: str, properties: tuple[str, ...]) -> CompletedCheckpoint:
    fs = file_system_for(path)
    if base_name(path) == METADATA_NAME or fs.exists(join(path, METADATA_NAME)):
        return load(path)
    with closing(Registers(properties)) as registers:
        return newest_checkpoint(path, registers)


def _cells(summary: StateSummary) -> list[str]:
    return [
        summary.uid,
        summary.state,
        summary.kind,
        summary.type,
        str(summary.rows),
        size(summary.bytes),
        f"{summary.key_group_skew:.2f}",
    ]
