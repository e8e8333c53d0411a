"""Entries of Spark's offset log, rewritten for other sources than they were written for.

An entry is a line with its version, one with settings, and then one line for each source of the plan, in the plan's
order: its offset, or `-` if it has none yet, which makes Spark begin at the source's start. What a source remembers
beside that lies in a folder `sources/<n>`. Sources are equal if they are the same frame; then they have one folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.checkpoint.recovery.replay import AGAIN
from holdfast.errors import ConfigurationError, RestoreError

_VERSION: Final = "v1"
_HEADER: Final = 2
_NONE: Final = "-"


def require_plain(text: str) -> list[str]:
    """The lines of the sources in an entry.

    Raises:
        ConfigurationError: Spark wrote it in another form, which names sources.
    """
    version, *rest = text.split("\n")
    if version != _VERSION:
        raise ConfigurationError(
            f"Spark writes the offsets of this job in the form {version!r}, but Holdfast reads {_VERSION!r}: unset "
            "spark.sql.streaming.queryEvolution.enableSourceEvolution and call no DataStreamReader.name(); .uid() "
            "gives an input its name"
        )
    return rest[_HEADER - 1 :]


def lines_of(streaming: Mapping[str, Any]) -> int:
    """How many sources the positions of a checkpoint are of."""
    return len(require_plain(streaming["offsets"][str(streaming["batch_id"])]))


def offsets_of(streaming: Mapping[str, Any]) -> list[int]:
    """For each line the number of the last entry that its source of files has read; -1 for none, and other sources."""
    return [log_offset(line) for line in require_plain(streaming["offsets"][str(streaming["batch_id"])])]


def log_offset(line: str) -> int:
    """The number of the last entry that a source of files has read, by its line; -1 for none, and other sources."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return -1
    offset = said.get("logOffset", -1) if isinstance(said, dict) else said
    return offset if type(offset) is int else -1


@dataclass(frozen=True)
class PlannedLine:
    """A line of the plan for which positions are made.

    Attributes:
        uid: Of its input.
        folder: Of its source.
        origin: The line whose position it takes, None for a source that begins at its start.
        elsewhere: Whether it reads something else than that line did. Spark plans the last batch of some sources once
            more when it goes on, which is not to find what was read there; so it is told that they had none.
    """

    uid: str
    folder: int
    origin: int | None
    elsewhere: bool = False


def rearranged(
    streaming: Mapping[str, Any], before: Sequence[int], plan: Sequence[PlannedLine]
) -> dict[str, Any] | None:
    """The positions of a checkpoint, for the sources of another plan.

    Args:
        streaming: Positions as `QueryDirectory.positions` gives them.
        before: The folder of each line.
        plan: The lines of the plan.

    Returns:
        None if no source goes on from anywhere.

    Raises:
        RestoreError: Lines that share a source are to begin at different places.
    """
    if all(line.origin is None for line in plan):
        return None
    batch, texts = int(streaming["batch_id"]), dict(streaming["offsets"])
    if any(line.elsewhere for line in plan) and len(texts) == 1:
        texts = {str(batch): texts[str(batch)], str(batch + 1): texts[str(batch)]}
        batch += 1
    newest = require_plain(texts[str(batch)])
    entries: dict[str, list[str]] = {}
    for number, text in texts.items():
        lines = require_plain(text)
        entries[number] = [
            _NONE if line.origin is None else (newest if line.elsewhere else lines)[line.origin] for line in plan
        ]
    _require_shared(before, plan, [tuple(entry[n] for entry in entries.values()) for n in range(len(plan))])
    sources: dict[str, Any] = {}
    for line in plan:
        if line.origin is not None:
            old = f"{before[line.origin]}/"
            inside = ((name, handle) for name, handle in streaming["sources"].items() if name.startswith(old))
            sources |= {f"{line.folder}/{name.removeprefix(old)}": handle for name, handle in inside}
    header = {number: text.split("\n")[:_HEADER] for number, text in texts.items()}
    offsets = {number: "\n".join([*header[number], *entry]) for number, entry in entries.items()}
    again = {AGAIN: True} if streaming.get(AGAIN) else {}
    return {"batch_id": batch, "offsets": offsets, "sources": sources, **again}


def _require_shared(before: Sequence[int], plan: Sequence[PlannedLine], positions: Sequence[tuple[str, ...]]) -> None:
    """Refuses lines that share a source and are not to begin at one place."""
    first: dict[int, tuple[str, Any]] = {}
    for line, position in zip(plan, positions, strict=True):
        place = (None if line.origin is None else before[line.origin], position)
        uid, other = first.setdefault(line.folder, (line.uid, place))
        if place != other:
            raise _different_places(uid, line.uid)


def _different_places(uid: str, other: str) -> RestoreError:
    return RestoreError(
        message=f"the inputs {uid!r} and {other!r} are one frame of Spark, which reads it once, but they do not begin "
        "at the same place (one may be new): give each a frame of its own, by calling spark.readStream for each"
    )
