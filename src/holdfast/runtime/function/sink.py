"""Sinks: how output leaves a job exactly once.

Writers run in the tasks and only *stage*: what they write must be durable, and visible to nobody. Each hands back
committables, which become part of the epoch's checkpoint. After the commit point the driver hands them to the
committer, and again after a recovery, so a commit must be idempotent for ever::

    task    create_writer -> write | write_batch* -> flush -> prepare_commit -> close    (abort if the attempt fails)
                                                        |
    driver                     checkpoint complete  ->  Committer.commit([CommitRequest, ...])

A writer lives for one attempt at one epoch; an epoch that runs again has new writers with other file names. What a
failed attempt has staged is removed by `sweep`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.kernel.ids import OperatorID, new_nonce
from holdfast.storage.job.naming import FileName
from holdfast.types.information.type_information import TypeInformation, Types

Committable = Any
"""A JSON value: it is stored in `_metadata`, and read again by whoever recovers the job."""

OWNER_DIGITS = 8
SEND_ERRORS = "numRecordsSendErrors"
"""The metric of elements that a sink could not write; Flink's name."""


class RefusedElementError(ValueError):
    """What a writer raises for elements that its target cannot take, before it has taken anything of them.

    The job fails with these words, or the elements go to the sink's dead letters. A writer of batches may raise it
    because of one row: then it is given parts of the batch, down to single rows. `OutputTypeError` does the same.
    """


def dead_letter_type(element_type: TypeInformation) -> TypeInformation:
    """Type of elements that a sink could not write, with its uid, the epoch, and why."""
    types = [element_type, Types.STRING(), Types.LONG(), Types.STRING()]
    return Types.ROW_NAMED(["row", "sink", "epoch", "reason"], types)


@dataclass(frozen=True)
class WriterInitContext:
    """What a writer is told: one subtask of one sink in one attempt of one epoch.

    Attributes:
        job_id: The job, 32 hexadecimal digits.
        uid: The sink.
        epoch: The epoch, from 1.
        subtask: Number of the subtask, from 0.
        parallelism: Number of subtasks.
        attempt: The attempt of the epoch.
        token: The leader's fencing token.
        input_type: Type of the elements.
        staging_dir: A directory of the job that survives until the files in it are swept; URI or path.
        processing_time: The epoch's processing time, in milliseconds.
        watermark: The watermark at the end of the epoch before, in milliseconds.
        incarnation: The incarnation of the job, as in `CommitRequest`.
        target: What `Sink.prepare` has returned.
    """

    job_id: str
    uid: str
    epoch: int
    subtask: int
    parallelism: int
    attempt: int
    token: int
    input_type: TypeInformation
    staging_dir: str
    processing_time: int = 0
    watermark: int = -(2**63)
    incarnation: str = ""
    target: Any = None

    @property
    def owner(self) -> str:
        """The sink in file names: eight hexadecimal digits derived from its uid."""
        return owner_of(self.uid)

    def file_name(self, suffix: str) -> str:
        """A new name that nobody else uses, which carries token, epoch and attempt so that a sweeper can judge it."""
        name = FileName(self.token, self.epoch, self.attempt, self.owner, self.subtask, new_nonce())
        return name.format(suffix)


@dataclass(frozen=True)
class CommitterInitContext:
    """What a committer, and a sweep, is told.

    Attributes:
        job_id: The job, 32 hexadecimal digits.
        uid: The sink.
        staging_dir: The same directory as that of the writers.
        services: What the engine offers by name, for instance `read_parquet(paths) -> DataFrame`.
        incarnations: Those that the job has had in its directory, the current one last.
        require_lead: Asks the register; raises FencedError if another process leads. For targets where who comes last
            shuts out who came before: it is asked before.
    """

    job_id: str
    uid: str
    staging_dir: str
    services: Mapping[str, Any] = field(default_factory=dict)
    incarnations: tuple[str, ...] = ()
    require_lead: Callable[[], object] = lambda: None

    @property
    def owner(self) -> str:
        """The sink in file names, as in `WriterInitContext`."""
        return owner_of(self.uid)


def owner_of(uid: str) -> str:
    """The part of a file name that names the operator."""
    return OperatorID.from_uid(uid).to_hex()[:OWNER_DIGITS]


class WriterContext(ABC):
    """What is known beside an element that is written."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the element in milliseconds; None if the stream has none."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark in milliseconds."""


class _Writer:
    """The life of a writer, whichever way it is fed."""

    def flush(self, end_of_input: bool) -> None:
        """Makes everything written so far durable; the last call before `prepare_commit`.

        Args:
            end_of_input: Whether the job ends with this epoch, so that no later one can take what is still held back.
        """

    def prepare_commit(self) -> list[Committable]:
        """Returns what the committer needs to make the staged output visible; JSON values."""
        return []

    def close(self) -> None:
        """Releases resources after `prepare_commit`."""

    def abort(self) -> None:
        """The attempt has failed: releases resources and removes what was staged, if it can; may never be called."""


class SinkWriter(_Writer, ABC):
    """Stages the output of one subtask, element by element.

    A writer that also defines `write_batch(batch: pyarrow.RecordBatch)` is fed with whole batches instead; see
    `BatchSinkWriter`. One whose target is away raises `StorageError`, so that the job waits for it.
    """

    @abstractmethod
    def write(self, element: Any, context: WriterContext) -> None:
        """Stages one element.

        Raises:
            RefusedElementError: The target cannot take it.
        """


class BatchSinkWriter(_Writer, ABC):
    """Stages the output of one subtask in Arrow batches, without making Python objects of the rows."""

    @abstractmethod
    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Stages one batch: a column for each field of a row type, otherwise one column `value`.

        Raises:
            RefusedElementError: The target cannot take a row of it; nothing of the batch is staged.
        """


class CommitRequest:
    """One committable that is to be committed, and the committer's answer for it.

    A request without an answer counts as committed when `Committer.commit` returns.

    What tells one epoch from all others for ever is (incarnation, uid, epoch): a job that starts anew counts its epochs
    in a new incarnation. Within one, the epochs of a sink are committed strictly in their order, so a target that
    remembers the last epoch of each incarnation knows that one at most that is committed.

    Attributes:
        committable: What the writer handed out.
        incarnation: The incarnation of the job that wrote it: new with each job directory, each `--fresh` and each
            `-s`. When it is committed again by a job that was started from the checkpoint, it is still that of the
            writer.
        uid: The sink that wrote it.
        epoch: The epoch that wrote it.
        subtask: The subtask that wrote it.
        checkpoint_id: The completed checkpoint that names it.
        number_of_retries: How often the committer asked for a retry of it before.
        is_recovered: Whether it comes from a restored checkpoint, so that an earlier process may have committed it.
    """

    def __init__(
        self,
        committable: Committable,
        *,
        epoch: int,
        subtask: int,
        checkpoint_id: int,
        number_of_retries: int = 0,
        is_recovered: bool = False,
        incarnation: str = "",
        uid: str = "",
    ) -> None:
        self.committable = committable
        self.incarnation = incarnation
        self.uid = uid
        self.epoch = epoch
        self.subtask = subtask
        self.checkpoint_id = checkpoint_id
        self.number_of_retries = number_of_retries
        self.is_recovered = is_recovered
        self._answer = "committed"
        self._reason: BaseException | None = None

    @property
    def answer(self) -> str:
        """`committed`, `already`, `retry`, `known` (dropped) or `unknown` (fails the job)."""
        return self._answer

    @property
    def reason(self) -> BaseException | None:
        """Why it was not committed, if the committer said so."""
        return self._reason

    def get_committable(self) -> Committable:
        """The committable; Flink's name."""
        return self.committable

    def get_number_of_retries(self) -> int:
        """How often it was retried before; Flink's name."""
        return self.number_of_retries

    def retry_later(self, reason: BaseException | None = None) -> None:
        """Asks for another try of the same committable, up to `sink.committer.retries` times."""
        self._settle("retry", reason)

    def update_and_retry_later(self, committable: Committable, reason: BaseException | None = None) -> None:
        """Asks for another try with a changed committable, for instance with what is left of it.

        The change lives in this process only: after a recovery the committable of the checkpoint comes again.
        """
        self.committable = committable
        self._settle("retry", reason)

    def signal_already_committed(self) -> None:
        """Says that an earlier try has committed it: a success."""
        self._settle("already", None)

    def signal_failed_with_known_reason(self, reason: BaseException) -> None:
        """Gives it up on purpose: it is logged, counted as failed, and the job goes on."""
        self._settle("known", reason)

    def signal_failed_with_unknown_reason(self, reason: BaseException) -> None:
        """Fails the job, which commits it again when it recovers."""
        self._settle("unknown", reason)

    def _settle(self, answer: str, reason: BaseException | None) -> None:
        self._answer = answer
        self._reason = reason


class Committer(ABC):
    """Makes staged output visible, in the driver, after the checkpoint that names it is complete."""

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Commits the committables of one epoch of one incarnation; epochs come in their order.

        An epoch of which a request is to be tried again holds up the next one.

        It must be idempotent for ever: after a crash the same committables come again, perhaps long after they were
        committed, perhaps while a deposed leader commits them as well. A request for which nothing is said counts as
        committed; an exception stands for `signal_failed_with_unknown_reason` of all requests.
        """

    def last_epoch(self, incarnation: str) -> int | None:
        """The highest epoch of an incarnation of which the target says that its commit has begun, None if it cannot.

        A target that says so protects from a job directory that was put back from a copy, and then counts to epochs
        again that were committed before.
        """
        return None

    def close(self) -> None:  # noqa: B027 - not every committer holds something
        """Releases resources at the end of the job attempt."""


class Sink(ABC):
    """Where a stream ends. It is pickled in the driver and used in tasks, so it holds settings and no connections."""

    @abstractmethod
    def create_writer(self, context: WriterInitContext) -> SinkWriter | BatchSinkWriter:
        """A writer for one subtask, epoch and attempt."""

    def check_input(self, element_type: TypeInformation) -> None:  # noqa: B027 - most sinks take everything
        """Looks at the type of the stream when the program connects the two.

        Raises:
            ConfigurationError: The sink cannot write elements of this type.
        """

    def key_columns(self) -> Sequence[str]:
        """The columns by which its rows replace each other, so that those of a key should come from one subtask.

        Returns:
            Their names; none if rows are only added.
        """
        return ()

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Makes sure, in the driver and before any task runs, that the target is the one it was.

        Args:
            context: The same as for the committer.
            kept: What this method returned when the restored checkpoint was written, None without one.

        Returns:
            What identifies the target, a JSON value: checkpoints keep it, and writers get it.

        Raises:
            StorageError: The target is not there, or is another one; the job waits for it as its restarts allow.
        """
        return None

    def create_committer(self, context: CommitterInitContext) -> Committer | None:
        """The committer of a job attempt; None for a sink with nothing to commit (at least once, or only for show)."""
        return None

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Removes staged files of dead attempts and returns how many.

        Args:
            context: The same as for the committer.
            is_dead: Whether a name belongs to an attempt that can no longer be committed; only such files may go.
        """
        return 0
