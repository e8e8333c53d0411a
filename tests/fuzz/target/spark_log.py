"""What a stopped query of Spark has left: the logs from which a job takes where its sources stood.

An input is an object with the lines of files by their paths in the checkpoint directory of the query; what is no text
in there is a line of JSON.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from holdfast.errors import HoldfastError, NotExistError
from holdfast.kernel.parsing import PARSE_ERRORS, check_nesting
from holdfast.runtime.graph.input_matching import InputLeaf
from holdfast.spark.input.files import _entries, listed_in_log
from holdfast.spark.stopped_query import _require_place, positions_of, read_logs
from tests.fuzz.document import directory, replaced

PATH = "/query"
LOG = directory() / "sources"


class Folder:
    """The directory, as `HadoopFolder` shows it."""

    path = PATH

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def names(self, folder: str = "") -> list[str]:
        above = f"{folder}/" if folder else ""
        return sorted({path.removeprefix(above).split("/")[0] for path in self._files if path.startswith(above)})

    def files(self, folder: str) -> Iterator[str]:
        return (path.removeprefix(f"{folder}/") for path in sorted(self._files) if path.startswith(f"{folder}/"))

    def read(self, file: str) -> bytes:
        if file not in self._files:
            raise NotExistError(f"There is no file {PATH}/{file}.")
        return self._files[file]


def parse(data: bytes) -> None:
    try:
        files = {path: b"\n".join(map(_line, lines)) for path, lines in json.loads(data).items()}
    except PARSE_ERRORS as error:
        raise HoldfastError(f"{PATH} is no folder") from error
    folder: Any = Folder(files)
    logs = read_logs(folder)
    found = positions_of(logs, dict.fromkeys(f"in {number}" for number in range(len(logs.lines))))
    check_nesting(found.streaming)
    json.dumps(found.streaming).encode()
    leaf = InputLeaf("in", 0, "files of path '/data'", "value string")
    _require_place(leaf, found.files, logs)
    for name, content in found.files.items():
        replaced(LOG / "0" / "0", content)
        assert name.startswith("0/") or name.split("/")[0].isdecimal()
        list(_entries(LOG / "0"))
        with suppress(HoldfastError):  # of sources that are none of files, nobody asks it
            listed_in_log(LOG / "0", -1, 0)


def _line(said: Any) -> bytes:
    text = said if isinstance(said, str) else json.dumps(said)
    return text.encode("utf-8", "surrogatepass")
