"""A job as a notebook shows it: how it is, its last epochs, and where its page is. Text and HTML, nothing to load."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

import humanfriendly

from holdfast.kernel.secret import shown_error
from holdfast.runtime.job.history import first_line
from holdfast.runtime.job.progress import EpochProgress
from holdfast.runtime.job.status import JobStatus
from holdfast.runtime.master.job_master import JobMaster

_EPOCHS: Final = 5
_COLOURS: Final = {
    JobStatus.RUNNING: "#1a7f37",
    JobStatus.FINISHED: "#1a7f37",
    JobStatus.FAILED: "#cf222e",
    JobStatus.RESTARTING: "#9a6700",
    JobStatus.CANCELED: "#9a6700",
}
_HEADINGS: Final = ("epoch", "rows", "rows/s", "took", "state", "checkpoint")


def card_of(master: JobMaster) -> dict[str, str]:
    """Return what is to be seen of a job now, by media type."""
    epochs = master.progress.recent[-_EPOCHS:]
    failure = None if master.failure is None else shown_error(master.failure)
    return {"text/plain": _text(master, epochs, failure), "text/html": _html(master, epochs, failure)}


def _text(master: JobMaster, epochs: Sequence[EpochProgress], failure: str | None) -> str:
    last = f", {epochs[-1].line()}" if epochs else ""
    said = f": {first_line(failure)}" if failure else last
    return f"<job {master.job.name!r} {master.job.job_id}, {master.status.value}{said}>"


def _html(master: JobMaster, epochs: Sequence[EpochProgress], failure: str | None) -> str:
    colour = _COLOURS.get(master.status, "inherit")
    place = master.rest_url
    # A job that has ended serves nothing any more.
    link = (
        f' &middot; <a href="{escape(place)}/" target="_blank">page</a>' if place and not master.ended.is_set() else ""
    )
    status = f'<b style="color:{colour}">{master.status.value}</b>'
    name = f"<b>{escape(master.job.name)}</b>"
    parts = [f"<div>{name} &middot; {status} &middot; <code>{master.job.job_id}</code>{link}</div>"]
    if failure:
        summary = f"<summary>{escape(first_line(failure))}</summary>"
        parts.append(f"<details>{summary}<pre>{escape(failure)}</pre></details>")
    if epochs:
        head = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
        rows = "".join(f"<tr>{_cells(epoch)}</tr>" for epoch in epochs)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
    return "".join(parts)


def _cells(epoch: EpochProgress) -> str:
    checkpoint = "-" if epoch.checkpoint_id is None else str(epoch.checkpoint_id)
    cells = (
        str(epoch.epoch),
        f"{epoch.rows:,}",
        f"{epoch.rows_per_second:,.0f}",
        f"{epoch.duration_ms / 1000:.1f} s",
        humanfriendly.format_size(epoch.state_bytes, binary=True),
        checkpoint,
    )
    return "".join(f"<td>{cell}</td>" for cell in cells)
