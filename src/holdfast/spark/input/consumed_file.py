"""Files that were read in epochs which no checkpoint holds: whoever goes back must find them again.

Spark lists a folder when a query begins, so a file that has gone since the attempt before is not missed, and Spark's
file index skips files that go after it has listed them (it logs "Was it deleted very recently?"). Their rows would be
in no epoch. So the files that an attempt has read are remembered in this process, and the next attempt looks for those
that it is to read again. Another process knows of none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from holdfast.kernel.secret import get_logger
from holdfast.runtime.graph.input_fitting import InputLeaf
from holdfast.runtime.job.engine import InputGoneError
from holdfast.spark.input.fitting import Line
from holdfast.spark.input.offset_log import offsets_of

logger = get_logger(__name__)

_SHOWN: Final = 3
_IGNORED: Final = "spark.sql.files.ignoreMissingFiles"


class ConsumedFiles:
    """What the attempts of a job in this process have read since its last checkpoint."""

    def __init__(self) -> None:
        self._read: dict[InputLeaf, dict[str, int]] = {}

    def note(self, lines: Sequence[Line], sources: Path) -> None:
        """Remember what an attempt has read, by the folder in which Spark's sources keep what they know."""
        for line in lines:
            found = {path: number for number, path in _entries(sources / str(line.folder))}
            if found:
                self._read.setdefault(line.leaf, {}).update(found)

    def require(self, lines: Sequence[Line], streaming: Mapping[str, Any] | None, session: SparkSession) -> None:
        """Look for the files that are to be read again, and forget those that a checkpoint holds.

        Args:
            lines: Of the plan.
            streaming: Where it begins, in the order of the lines; None for the start of all.
            session: Of the job.

        Raises:
            InputGoneError: One is gone, and Spark was not told to ignore missing files.
        """
        offsets = [-1] * len(lines) if streaming is None else offsets_of(streaming)
        before, self._read = self._read, {}
        for line, offset in zip(lines, offsets, strict=True):
            again = {path: number for path, number in before.get(line.leaf, {}).items() if number > offset}
            if again:
                self._read[line.leaf] = again
                gone = [path for path in sorted(again) if not _exists(path, session)]
                if gone:
                    self._tell(line, gone, session)

    def _tell(self, line: Line, gone: Sequence[str], session: SparkSession) -> None:
        shown = ", ".join(gone[:_SHOWN]) + (f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else "")
        what = f"{len(gone)} file(s) of input {line.leaf.uid!r} are gone, whose epoch has to be repeated"
        if line.ignores_missing or session.conf.get(_IGNORED, "false") == "true":
            logger.warning("%s. Missing files are ignored, as asked for: %s", what, shown)
            for path in gone:
                del self._read[line.leaf][path]
            return
        raise InputGoneError(
            f"{what}: {shown}; put them back and run the job again, or tell the input to go on without their rows "
            f"(option ignoreMissingFiles=true, or {_IGNORED})"
        )


def _entries(folder: Path) -> Iterator[tuple[int, str]]:
    """Number and path of each file in the log of a source of files; nothing of other sources."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.name.startswith(".") or not entry.is_file():
            continue
        for text in entry.read_text(errors="replace").splitlines()[1:]:
            try:
                said = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(said, dict) and "path" in said and isinstance(said.get("batchId"), int):
                yield said["batchId"], str(said["path"])


def _exists(path: str, session: SparkSession) -> bool:
    jvm = session.sparkContext._jvm
    assert jvm is not None
    place = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(path))
    return bool(place.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()).exists(place))
