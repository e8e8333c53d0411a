"""Drives a sink as a job does, without a job: writers of one epoch, then the commit of what they handed out."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.kernel.clock import ManualClock
from holdfast.runtime.commit.committing import COMMITTER_RETRIES, Committing
from holdfast.runtime.commit.sink_committing import CommitReport, Entry
from holdfast.runtime.function.sink import CommitterInitContext, Sink, WriterContext, WriterInitContext
from holdfast.storage.job.naming import FileName
from holdfast.types.conversion.arrow import batch_to_elements, elements_to_batch
from holdfast.types.conversion.convert import to_type

JOB: Final = "ab" * 16
UID: Final = "out"


class NoPause(ManualClock):
    """Does not wait between the tries of a commit."""

    def sleep(self, seconds: float, wake: Any = None) -> bool:
        """Returns at once."""
        return False


class _NoContext(WriterContext):
    def timestamp(self) -> int | None:
        return None

    def current_watermark(self) -> int:
        return -(2**63)


class SinkStage:
    """One sink of one job; `write` stages an epoch and returns its committables as `_metadata` would hold them.

    Args:
        sink: The sink.
        staging: The directory that writers are given.
        columns: The type of the elements.
        incarnation: Of the job.
    """

    def __init__(
        self, sink: Sink, staging: Path, columns: str = "word string, n bigint", *, incarnation: str = ""
    ) -> None:
        self.sink = sink
        self.type = to_type(columns)
        self.staging = staging
        self.incarnation = incarnation
        self.target: Any = None
        self.services: Mapping[str, Any] = {"read_parquet": read_parquet}

    def prepare(self) -> None:
        """Lets the sink look at its target, as a job does that starts for the first time."""
        self.target = json_copy(self.sink.prepare(self._committer_context(), None))

    def context(self, epoch: int, subtask: int = 0, attempt: int = 1, token: int = 1) -> WriterInitContext:
        """What a writer of two subtasks is told."""
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
            incarnation=self.incarnation,
            target=self.target,
        )

    def write(self, epoch: int, rows: Sequence[Any], subtask: int = 0, attempt: int = 1) -> list[dict[str, Any]]:
        """Stages the rows of one subtask, each in a batch of its own, with the sink as a task has it: pickled."""
        copy: Sink = pickle.loads(pickle.dumps(self.sink))
        writer: Any = copy.create_writer(self.context(epoch, subtask, attempt))
        for row in rows:
            batch = elements_to_batch([row], self.type, UID)
            if hasattr(writer, "write_batch"):
                writer.write_batch(batch)
            else:
                for element in batch_to_elements(batch, self.type):
                    writer.write(element, _NoContext())
        writer.flush(False)
        handed_out = writer.prepare_commit()
        writer.close()
        return [
            {"incarnation": self.incarnation, "epoch": epoch, "subtask": subtask, "value": json_copy(value)}
            for value in handed_out
        ]

    def commit(
        self, committables: Sequence[Entry], checkpoint_id: int = 1, *, is_recovered: bool = False
    ) -> CommitReport:
        """Commits with a committer of its own, as the process does that leads now.

        Raises:
            HoldfastError: Some could not be committed.
        """
        committing = self.committing()
        try:
            return committing.commit(checkpoint_id, {UID: committables}, is_recovered=is_recovered)
        finally:
            committing.close()

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        """Lets the sink remove what dead attempts have staged."""
        return self.committing().sweep(is_dead)

    def committing(self, retries: int = COMMITTER_RETRIES.default) -> Committing:
        """The committers of one process, which try each epoch again so often."""
        return Committing(
            {UID: self.sink},
            job_id=JOB,
            staging_dir=str(self.staging),
            services=self.services,
            retries=retries,
            clock=NoPause(),
            incarnations=(self.incarnation,) if self.incarnation else (),
        )

    def _committer_context(self) -> CommitterInitContext:
        return CommitterInitContext(JOB, UID, str(self.staging), dict(self.services), (self.incarnation,))


def read_parquet(paths: Sequence[str]) -> pa.Table:
    """The service of this name: a frame is an Arrow table here."""
    return pa.concat_tables([pq.read_table(path) for path in paths])


def json_copy(value: Any) -> Any:
    """A value as a checkpoint gives it back.

    Raises:
        AssertionError: A checkpoint would give back something else.
    """
    copy = json.loads(json.dumps(value))
    assert copy == value, f"{value!r} is no JSON value: a checkpoint would give back {copy!r}"
    return copy
