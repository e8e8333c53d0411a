"""`holdfast inspect PATH`: what a checkpoint or savepoint holds of each state."""

from __future__ import annotations

from dataclasses import asdict

import click

from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.job_directories import checkpoint_at
from holdfast.cli.registers import where_option
from holdfast.cli.table import moment, print_json, print_table, size
from holdfast.state_processor.read.state_summary import StateSummary, summaries

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
        print_table(COLUMNS, map(_cells, found))


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
