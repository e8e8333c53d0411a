"""Where the sources of a stopped query stand, in the form in which savepoints have it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.malformed import MALFORMED
from holdfast.kernel.secret import place_of
from holdfast.runtime.graph.input_fitting import InputLeaf
from holdfast.spark.input.description import streaming_leaves
from holdfast.spark.input.fitting import Line, lines_of_leaves
from holdfast.spark.stopped_query.hadoop_folder import HadoopFolder
from holdfast.spark.stopped_query.query_logs import QueryLogs

_ENTRY: Final = re.compile(r"([0-9]{1,18})(\.compact)?")
_LOG_OFFSET: Final = "logOffset"
_PATTERN: Final = re.compile(r"[*?\[\]{}]")


@dataclass(frozen=True)
class QueryPositions:
    """Positions of sources, and the files that they need.

    Attributes:
        streaming: As a checkpoint has it, but for the files.
        files: What the sources remember, by path below their folders.
    """

    streaming: Mapping[str, Any]
    files: Mapping[str, bytes]


def positions_of(logs: QueryLogs, inputs: Mapping[str, DataFrame | None]) -> QueryPositions:
    """The positions of a query's sources, for inputs of a job. Blocks.

    Args:
        logs: Of the query.
        inputs: The sources in the order of the query's plan: by the uid of the input that goes on there, what the
            source reads. With None it is not known, and the job has to say that the position holds.

    Raises:
        ConfigurationError: They are not the sources of the query.
        StateError: What a source remembers is not there any more.
    """
    lines = _lines(logs, inputs)
    if len(lines) != len(logs.lines):
        raise ConfigurationError(
            f"The query in {logs.folder.path!r} has {len(logs.lines)} sources, but {list(inputs)!r} read from "
            f"{len(lines)}: give them all, in the order in which the query reads them."
        )
    files: dict[str, bytes] = {}
    for folder in sorted({line.folder for line in lines}):
        [*at] = dict.fromkeys(text for line, text in zip(lines, logs.lines, strict=True) if line.folder == folder)
        if len(at) != 1:
            raise ConfigurationError(
                f"Inputs of the query in {logs.folder.path!r} read one source, but stand at different places: {at!r}."
            )
        own = _files(logs.folder, folder, at[0])
        for line in lines:
            if line.folder == folder:
                _require_place(line.leaf, own, logs)
        files |= {f"{folder}/{name}": content for name, content in own.items()}
    batch = logs.batch_id
    if batch > 0 and logs.lines_before is None:
        raise StateError(
            f"The offset log in {logs.folder.path!r} has batch {batch} and not the one before, and Spark needs both to "
            "go on: take a newer batch."
        )
    offsets = {str(batch): _text(logs, logs.lines)}
    if logs.lines_before is not None:
        offsets[str(batch - 1)] = _text(logs, logs.lines_before)
    streaming = {"batch_id": batch, "offsets": offsets, "inputs": [line.to_json() for line in lines]}
    return QueryPositions(streaming, files)


def _lines(logs: QueryLogs, inputs: Mapping[str, DataFrame | None]) -> Sequence[Line]:
    known: dict[str, DataFrame] = {uid: frame for uid, frame in inputs.items() if frame is not None}
    for uid, frame in inputs.items():
        if not isinstance(uid, str) or not uid:
            raise ConfigurationError(f"An input has a uid that is a text and not empty, not {uid!r}.")
        if frame is not None and not (isinstance(frame, DataFrame) and frame.isStreaming):
            raise ConfigurationError(f"Input {uid!r} is a streaming DataFrame that reads what the query read, or None.")
    if known and len(known) < len(inputs):
        raise ConfigurationError("Give all inputs a DataFrame, or none of them.")
    if known:
        leaves = [(uid, leaf) for uid, frame in known.items() for leaf in streaming_leaves(frame)]
        return lines_of_leaves(leaves, next(iter(known.values())).sparkSession)
    return [
        Line(InputLeaf(uid, 0, f"source {number} of the query {logs.query_id} of Spark", "unknown columns"), number)
        for number, uid in enumerate(inputs)
    ]


def _text(logs: QueryLogs, lines: Sequence[str]) -> str:
    # Settings of the query are no business of the job, and the watermark is none that its plan in Spark has.
    header = {"batchWatermarkMs": 0, "batchTimestampMs": logs.timestamp, "conf": {}}
    return "\n".join(["v1", json.dumps(header), *lines])


def _files(folder: HadoopFolder, number: int, line: str) -> dict[str, bytes]:
    """What a source remembers; of a source of files only what it had read, or it would take later files for read.

    Raises:
        StateError: Its log has no entry where it stands.
    """
    place = f"sources/{number}"
    names = [name for name in folder.files(place) if not name.endswith(".tmp")]
    newest = _log_offset(line)
    if newest is not None:
        entries = {name: _ENTRY.fullmatch(name) for name in names}
        names = [name for name, found in entries.items() if found is not None and int(found[1]) <= newest]
        missing = _missing(names, newest)
        if newest >= 0 and missing is not None:
            raise StateError(
                f"{folder.path}/{place} has no entry {missing}, so nobody knows which files the query had read at "
                f"{line!r}: take a newer batch."
            )
    return {name: folder.read(f"{place}/{name}") for name in names}


def _missing(names: Sequence[str], newest: int) -> int | None:
    """The first entry that is not there, of those that say what was read up to one."""
    compacted = max((int(name.partition(".")[0]) for name in names if name.endswith(".compact")), default=-1)
    there = {int(name) for name in names if not name.endswith(".compact")} | {compacted}
    return next((number for number in range(compacted + 1, newest + 1) if number not in there), None)


def _log_offset(line: str) -> int | None:
    """The last entry that a source of files had read; None for other sources, -1 if it had read nothing."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = said.get(_LOG_OFFSET) if isinstance(said, dict) else None
    return found if type(found) is int else None


def _require_place(leaf: InputLeaf, files: Mapping[str, bytes], logs: QueryLogs) -> None:
    """Refuse an input that reads another folder than the files that the source had read are in."""
    found = re.search(r" of path '([^']*)'$", leaf.reads)
    if found is None or _PATTERN.search(found[1]):
        return
    for content in files.values():
        for text in content.decode(errors="replace").splitlines()[1:]:
            try:
                path = str(json.loads(text)["path"])
            except MALFORMED:
                continue
            if not _plain(place_of(path)).startswith(_plain(found[1]).rstrip("/") + "/"):
                raise ConfigurationError(
                    f"Input {leaf.uid!r} reads {leaf.reads}, but its source in {logs.folder.path!r} has read {path!r}: "
                    "give the inputs in the order in which the query reads them."
                )
            return


def _plain(path: str) -> str:
    return re.sub(r"^file:/+", "/", path)
