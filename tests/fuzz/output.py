"""What a checkpoint says that a sink has staged, given to its committer: it is committed, or says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from tests.fuzz.document import directory

STAGED_NAME: Final = "000001-000000007-0-sink-0-000000000000"
ROWS: Final = pa.table({"word": ["kelp", "rock"], "n": pa.array([1, 2], pa.int64())})
UID: Final = "out"
INCARNATION: Final = "line"


def committable_of(data: bytes, **places: str) -> Any:
    """What an input says; `@name@` in it stands for a text, and `"@name@"` for a number.

    Raises:
        ValueError, RecursionError: It is no JSON, which nobody comes across: a checkpoint was JSON when it was read.
    """
    for name, place in places.items():
        mark = f'"@{name}@"' if place.isdecimal() else f"@{name}@"
        data = data.replace(mark.encode(), place.encode())
    return json.loads(data)


def context(name: str) -> CommitterInitContext:
    """What the committer of a target is told; its directory of staged files is empty at first."""
    staging = directory() / name / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    return CommitterInitContext("0" * 32, UID, str(staging), incarnations=(INCARNATION,))


def stage(path: Path, rows: pa.Table = ROWS) -> int:
    """Put a file in place that a task may have staged; returns its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)
    return path.stat().st_size


def request_of(committable: Any) -> CommitRequest:
    """The request to commit one."""
    return CommitRequest(
        committable, epoch=7, subtask=0, checkpoint_id=7, is_recovered=True, incarnation=INCARNATION, uid=UID
    )


def commit(committer: Committer, committable: Any) -> None:
    """Commit one.

    Raises:
        HoldfastError: It is not committed.
    """
    request = request_of(committable)
    try:
        committer.commit([request])
    finally:
        committer.close()
    if request.answer not in ("committed", "already"):
        assert request.reason is not None, f"{request.answer}, and nobody says why"
        raise request.reason
