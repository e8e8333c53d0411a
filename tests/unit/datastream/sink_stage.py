"""Drives a sink as a job does, without a job: writers of one epoch, then the commit of what they handed out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.kernel.clock import ManualClock
from holdfast.runtime.commit.committing import CommitReport, Committing
from holdfast.runtime.function.sink import Sink, WriterInitContext
from holdfast.storage.job.naming import FileName
from holdfast.types.conversion.arrow import elements_to_batch
from holdfast.types.conversion.convert import to_type

JOB = "ab" * 16
UID = "out"


class NoPause(ManualClock):
    """Does not wait between the tries of a commit."""

    def sleep(self, seconds: float, wake: Any = None) -> bool:
        return False


def read_parquet(paths: Sequence[str]) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in paths])


class Stage:
    """One sink of one job; `write` stages an epoch and returns its committables as `_metadata` would hold them."""

    def __init__(self, sink: Sink, staging: Path, columns: str = "word string, n bigint") -> None:
        self.sink = sink
        self.type = to_type(columns)
        self.staging = staging
        self.services: Mapping[str, Any] = {"read_parquet": read_parquet}

    def context(self, epoch: int, subtask: int = 0, attempt: int = 1, token: int = 1) -> WriterInitContext:
        return WriterInitContext(
            job_id=JOB,
            uid=UID,
            epoch=epoch,
            subtask=subtask,
            parallelism=2,
            attempt=attempt,
            token=token,
            input_type=self.type,
            staging_dir=str(self.staging),
        )

    def write(self, epoch: int, rows: Sequence[Any], subtask: int = 0, attempt: int = 1) -> list[dict[str, Any]]:
        writer: Any = self.sink.create_writer(self.context(epoch, subtask, attempt))
        for row in rows:
            writer.write_batch(elements_to_batch([row], self.type, UID))
        writer.flush(False)
        handed_out = writer.prepare_commit()
        writer.close()
        stored = json.loads(json.dumps(handed_out))
        return [{"epoch": epoch, "subtask": subtask, "value": value} for value in stored]

    def commit(
        self, committables: Sequence[dict[str, Any]], checkpoint_id: int = 1, *, is_recovered: bool = False
    ) -> CommitReport:
        committing = self._committing()
        try:
            return committing.commit(checkpoint_id, {UID: committables}, is_recovered=is_recovered)
        finally:
            committing.close()

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        return self._committing().sweep(is_dead)

    def _committing(self) -> Committing:
        return Committing(
            {UID: self.sink}, job_id=JOB, staging_dir=str(self.staging), services=self.services, clock=NoPause()
        )
