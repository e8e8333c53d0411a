"""The logs of a query: which batch was committed last, and where the sources stood after it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.errors import ConfigurationError, CorruptFileError, NotExistError, StateError
from holdfast.kernel.malformed import MALFORMED
from holdfast.kernel.secret import get_logger
from holdfast.spark.stopped_query.hadoop_folder import HadoopFolder

logger = get_logger(__name__)

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_COMMITS: Final = ("v1", "v2")
_PLAIN: Final = "v1"
_HEADER: Final = 2
_TIMES: Final = ("batchTimestampMs", "batchWatermarkMs")


@dataclass(frozen=True)
class QueryLogs:
    """What the logs of a query say about one committed batch.

    Attributes:
        folder: The checkpoint directory of the query.
        query_id: Its id.
        batch_id: The batch.
        lines: For each source of its plan the position after the batch, as Spark has it.
        lines_before: The same after the batch before; None if the log does not have it any more, or it is the first.
        timestamp: When the batch began, in milliseconds.
        watermark: With which the batch went, in milliseconds; 0 for none.
    """

    folder: HadoopFolder
    query_id: str
    batch_id: int
    lines: tuple[str, ...]
    lines_before: tuple[str, ...] | None
    timestamp: int
    watermark: int


def read_logs(folder: HadoopFolder, batch_id: int | None = None) -> QueryLogs:
    """Read the logs of a query that does not run. Blocks.

    Args:
        folder: Its checkpoint directory.
        batch_id: The batch to take; None for the last one, which has to be committed.

    Raises:
        NotExistError: It is no checkpoint directory of a query, or the batch is not in its logs.
        StateError: The batch was not committed; or none is named, and after the last committed batch another one was
            begun that read something.
        ConfigurationError: Spark keeps positions by the names of sources, or in another form that is not known.
        CorruptFileError: An entry is damaged.
    """
    if "metadata" not in folder.names():
        raise NotExistError(
            f"{folder.path!r} is no checkpoint directory of a query of Spark: there is no file 'metadata' in it."
        )
    planned, committed = _numbers(folder, "offsets"), _numbers(folder, "commits")
    if not committed:
        raise StateError(f"No batch of the query in {folder.path!r} was committed, so it has no state to take.")
    chosen = committed[-1] if batch_id is None else batch_id
    if chosen not in committed or chosen not in planned:
        known = f"there are {committed[0]} to {committed[-1]}"
        if chosen in planned:
            raise StateError(
                f"Batch {chosen} of the query in {folder.path!r} was begun and not committed. Start the query once "
                f"more, so that it ends the batch, or take a batch that was committed: {known}."
            )
        raise NotExistError(f"The logs of the query in {folder.path!r} do not have batch {chosen}: {known}.")
    _require_commit(folder, chosen)
    header, lines = _entry(folder, chosen)
    before = _entry(folder, chosen - 1)[1] if chosen - 1 in planned else None
    later = [number for number in planned if number > chosen]
    if batch_id is None and later:
        _require_nothing_read(folder, chosen, lines, later)
    return QueryLogs(
        folder,
        _query_id(folder),
        chosen,
        lines,
        before,
        header["batchTimestampMs"],
        header["batchWatermarkMs"],
    )


def _require_nothing_read(folder: HadoopFolder, chosen: int, lines: tuple[str, ...], later: list[int]) -> None:
    """Refuse to forget silently what a batch has read that was begun and did not end."""
    begun = later[0]
    if any(_entry(folder, number)[1] != lines for number in later):
        raise StateError(
            f"Batch {begun} of the query in {folder.path!r} has read rows and was not committed; the sink of the query "
            f"may have some of what it made of them. Start the query once more, so that it ends the batch, or say "
            f"batch_id={chosen}: then a job reads these rows again, and what the sink has stays there."
        )
    logger.warning("batch %d of the query in %s was begun, read nothing and is left out", begun, folder.path)


def _numbers(folder: HadoopFolder, log: str) -> list[int]:
    return sorted(int(name) for name in folder.names(log) if _NUMBER.fullmatch(name))


def _require_commit(folder: HadoopFolder, number: int) -> None:
    version = _text(folder, f"commits/{number}").partition("\n")[0]
    if version not in _COMMITS:
        raise ConfigurationError(
            f"{folder.path}/commits/{number} has the form {version!r:.40}, but {' and '.join(_COMMITS)} are known."
        )


def _entry(folder: HadoopFolder, number: int) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """The times in the header of an entry of the offset log, and a line for each source."""
    name = f"offsets/{number}"
    version, *rest = _text(folder, name).split("\n")
    if version != _PLAIN:
        raise ConfigurationError(
            f"{folder.path}/{name} has the form {version!r:.40}, but {_PLAIN!r} is known, which knows sources by their "
            "places: a query whose sources have names (DataStreamReader.name()) cannot be taken."
        )
    try:
        header = json.loads(rest[0]) if rest[0] else {}
        times = {key: int(header.get(key) or 0) for key in _TIMES}
    except MALFORMED as error:
        raise _damaged(folder, name) from error
    if len(rest) < _HEADER:
        raise _damaged(folder, name)
    return times, tuple(rest[_HEADER - 1 :])


def _query_id(folder: HadoopFolder) -> str:
    try:
        return str(json.loads(_text(folder, "metadata"))["id"])
    except MALFORMED as error:
        raise _damaged(folder, "metadata") from error


def _text(folder: HadoopFolder, name: str) -> str:
    try:
        return folder.read(name).decode()
    except UnicodeDecodeError as error:
        raise _damaged(folder, name) from error


def _damaged(folder: HadoopFolder, name: str) -> CorruptFileError:
    return CorruptFileError(f"{folder.path}/{name}", 0, "it is no entry of a log of Spark")
