"""All errors that Holdfast raises.

A class exists only where a caller would act differently::

    HoldfastError
     ├ ConfigurationError               option unknown, invalid or missing; a program that cannot run as written
     ├ UserFunctionError                a user's function raised an exception
     ├ OutputTypeError                  a produced value does not match its declared type
     ├ NullKeyError                     the key of a row is null as a whole
     ├ StateError                       state used in a way that its kind does not allow
     │   └ StateMigrationError          restored state does not fit the new type
     │       └ MissingClassError        a class that state was written with cannot be imported
     ├ CheckpointError                  a checkpoint did not complete; has a CheckpointFailureReason
     │   └ StopWithSavepointStoppingError   the savepoint of a stop was written, then the job failed
     ├ RestoreError                     a restore was rejected, nothing was changed
     ├ CorruptFileError                 a file is truncated, has a flipped bit or is not ours
     ├ FormatVersionError               a file was written by a newer version
     ├ FencedError                      another process leads: stop and write nothing
     ├ ConflictError                    a compare-and-set lost, nothing happened
     ├ PossibleInconsistentStateError   the outcome of a write is unknown: discard nothing
     ├ AlreadyExistError                the object to be created exists already
     ├ NotExistError                    the requested object does not exist
     ├ StorageError                     an I/O operation failed permanently
     │  ├ CheckpointDeclinedError       a sink cannot make its output durable at this checkpoint
     │  └ UnsharedStorageError          a worker does not see what the driver wrote
     ├ EngineError                      Spark failed, and not the program
     │  ├ InputError                    an input cannot be read: damaged, missing or not permitted
     │  │  └ InputGoneError             unread rows of an input are lost
     │  ├ EngineUnavailableError        a host, a connection or a service is unavailable: wait or repair it
     │  └ EngineLostError               only a new process can go on
     ├ InconsistentEpochError           acknowledgements of an epoch disagree: run the epoch again
     └ JobExecutionError                a job ended FAILED

Every message says what happened, to what, and what to do. Every error can be pickled, because errors go from process to
process; a cause of another class is pickled as text.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

_LONGEST_REASON: Final = 4000


class HoldfastError(Exception):
    """Base class of all errors of Holdfast."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling the constructor again: its arguments differ from class to class."""
        cause: HoldfastError | str | None = None
        if isinstance(self.__cause__, HoldfastError):
            cause = self.__cause__
        elif self.__cause__ is not None:
            cause = "".join(traceback.format_exception(self.__cause__))
        return _revive, (type(self), self.args, self.__dict__, cause)


class RemoteTraceback(Exception):
    """The text of a cause that was raised in another process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


def _revive(
    cls: type[HoldfastError], args: tuple[Any, ...], attributes: dict[str, Any], cause: HoldfastError | str | None
) -> HoldfastError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    error.__cause__ = RemoteTraceback(cause) if isinstance(cause, str) else cause
    return error


def error_to_json(error: HoldfastError) -> dict[str, Any]:
    """Return an error as JSON, for a receiver that must not unpickle: without what JSON does not have.

    Its class is the nearest one of this module. Other values than texts, numbers and lists of them become texts.
    """
    _, (_, arguments, attributes, cause) = error.__reduce__()
    return {
        "class": next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == __name__),
        "arguments": _plain(arguments),
        "attributes": {name: _plain(value) for name, value in attributes.items()},
        "cause": error_to_json(cause) if isinstance(cause, HoldfastError) else cause,
    }


def error_from_json(value: Any) -> HoldfastError:
    """Return the error that `error_to_json` was given.

    Raises:
        ValueError: The value is none.
    """
    try:
        cls, arguments, attributes, cause = (value[name] for name in ("class", "arguments", "attributes", "cause"))
        known = _CLASSES[cls]
        own = cause if cause is None or isinstance(cause, str) else error_from_json(cause)
        return _revive(known, tuple(arguments), dict(attributes), own)
    except (LookupError, TypeError) as error:
        raise ValueError(f"this is no error: {value!r}") from error


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else repr(value)


class ConfigurationError(HoldfastError):
    """An option is unknown, invalid or missing, or a program cannot run as it is written."""


class _NamesOperator:
    """Part of the errors of one operator: once the driver has set `name`, the text has it beside the uid."""

    uid: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        if self.name is None or self.name == self.uid:
            return text
        return text.replace(f"operator {self.uid!r}", f"operator {self.name!r} (uid {self.uid!r})", 1)


class UserFunctionError(_NamesOperator, HoldfastError):
    """A user's function raised an exception.

    Its text is a line that says what failed, then the element and the user's traceback.

    Attributes:
        uid: The operator.
        key: The key that was being processed; None outside a keyed call.
        epoch: The epoch; None if unknown.
        name: Name of the operator; None if unknown.
        details: The element, if it is known, and the user's traceback, in lines.
        is_final: Whether a new attempt would raise it again: the function does not fit its operator.
        is_logged: Whether a log has its details.
    """

    def __init__(
        self, uid: str, key: Any, epoch: int | None, message: str, *, details: str = "", is_final: bool = False
    ) -> None:
        super().__init__(message)
        self.uid = uid
        self.key = key
        self.epoch = epoch
        self.details = details
        self.is_final = is_final
        self.is_logged = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the cause if the details have its traceback."""
        if not self.details:
            return super().__reduce__()
        return _revive, (type(self), self.args, self.__dict__, None)

    def __str__(self) -> str:
        return f"{self.headline}\n{self.details}" if self.details else self.headline

    @property
    def headline(self) -> str:
        """The first line: what failed, and why."""
        return super().__str__()


class OutputTypeError(_NamesOperator, HoldfastError):
    """A produced value or row does not match its declared type.

    Attributes:
        uid: The operator; None if unknown.
        row: Position of the row in its batch; None if the error is not about one row.
        field: Name of the field; None for the row as a whole.
        declared: The declared type as DDL.
    """

    def __init__(
        self,
        uid: str | None,
        message: str,
        *,
        row: int | None = None,
        field: str | None = None,
        declared: str | None = None,
    ) -> None:
        super().__init__(message)
        self.uid = uid
        self.row = row
        self.field = field
        self.declared = declared


class NullKeyError(_NamesOperator, HoldfastError):
    """The key of a row is null as a whole. Composite keys may have null parts.

    Attributes:
        uid: The operator; None if unknown.
        row: Position of the first such row in its batch; None if unknown.
        column: The column of the key; None if a key selector returned it, or if unknown.
    """

    def __init__(
        self,
        uid: str | None = None,
        message: str | None = None,
        *,
        row: int | None = None,
        column: str | None = None,
        element: str | None = None,
    ) -> None:
        if message is None:
            where = f" of operator {uid!r}" if uid is not None else ""
            which = f" of row {row} of its batch" if row is not None else ""
            what = f"The key{which}{where} is null"
            if column is not None:
                what = f"Column {column!r}, the key{where}, is null{which.replace(' of', ' in', 1)}"
            shown = "" if element is None else f": {element}"
            message = f"{what}{shown}. Filter such rows out or give them a key before key_by."
        super().__init__(message)
        self.uid = uid
        self.row = row
        self.column = column


class StateError(HoldfastError):
    """State was used in a way that its kind or its descriptor does not allow."""


class StateMigrationError(StateError):
    """Restored state does not fit the type that the program declares for it now."""


class MissingClassError(StateMigrationError):
    """A class that state was written with cannot be imported in this process."""


class CheckpointFailureReason(Enum):
    """Why a checkpoint did not complete; the value is a text.

    Tasks may decline with any of them, in a program that uses a coordinator by hand. The tasks of a real-time job
    decline with CHECKPOINT_ASYNC_EXCEPTION, if storage fails, with CHECKPOINT_DECLINED, if a sink cannot make its
    output durable now, and with CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED. Holdfast itself never uses
    BLOCKING_OUTPUT_EXIST, nor the other reasons about barriers and channels between tasks.
    """

    # Rejected before anything was triggered.
    PERIODIC_SCHEDULER_SHUTDOWN = "Periodic checkpoint scheduler is shut down."
    TOO_MANY_CHECKPOINT_REQUESTS = "The maximum number of queued checkpoint requests exceeded."
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "The minimum time between checkpoints has not elapsed yet; it will be triggered."
    NOT_ALL_REQUIRED_TASKS_RUNNING = "Not all required tasks are currently running."
    IO_EXCEPTION = "An I/O problem occurred while the checkpoint was triggered."
    BLOCKING_OUTPUT_EXIST = "Blocking output edge exists in running tasks."
    # While it ran.
    CHECKPOINT_ASYNC_EXCEPTION = "The asynchronous part of a task's snapshot failed."
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = "Another subtask that shares the channel state file failed."
    CHECKPOINT_EXPIRED = "Checkpoint expired before completing."
    CHECKPOINT_SUBSUMED = "A newer checkpoint completed first."
    CHECKPOINT_DECLINED = "A task declined the checkpoint."
    CHECKPOINT_DECLINED_TASK_NOT_READY = "A task was not ready: not yet running or initialised."
    CHECKPOINT_DECLINED_TASK_CLOSING = "A task was closing."
    CHECKPOINT_DECLINED_SUBSUMED = "A task saw the barrier of a newer checkpoint."
    CHECKPOINT_DECLINED_TIME_OUT = (
        "The driver's own part of the checkpoint, a master hook, was not done before its deadline."
    )
    CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED = "A task held back more than the alignment limit."
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = "A task got a cancellation marker from one of its inputs."
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = "One of a task's inputs has ended."
    CHECKPOINT_COORDINATOR_SHUTDOWN = "Checkpoint coordinator is shut down."
    CHECKPOINT_COORDINATOR_SUSPEND = "Checkpoint coordinator is suspended."
    JOB_FAILOVER_REGION = "A part of the job is being restarted."
    TASK_FAILURE = "A task has failed."
    TASK_CHECKPOINT_FAILURE = "A task's own part of the checkpoint failed."
    TASK_FAILURE_DURING_CHECKPOINT = "A task died after its run was written."
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = "A notification came for an unknown task."
    FINALIZE_CHECKPOINT_FAILURE = "Writing the checkpoint's metadata or its pointer failed."
    TRIGGER_CHECKPOINT_FAILURE = "Triggering the checkpoint failed."
    # Not one of Flink's: Flink ignores failures of hooks, but a job whose hook never answers would run without output.
    MASTER_HOOK_FAILURE = "A master hook failed."

    @property
    def message(self) -> str:
        """The reason as text."""
        return self.value

    @property
    def is_pre_flight(self) -> bool:
        """Whether the request was rejected before anything was triggered."""
        return self in _PRE_FLIGHT

    @property
    def counts_as_failure(self) -> bool:
        """Whether it counts towards the tolerable failed checkpoints."""
        return self in _COUNTED


_PRE_FLIGHT = frozenset(
    {
        CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN,
        CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS,
        CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
        CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.BLOCKING_OUTPUT_EXIST,
    }
)
_COUNTED = frozenset(
    {
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
        CheckpointFailureReason.CHECKPOINT_DECLINED_TIME_OUT,
        CheckpointFailureReason.MASTER_HOOK_FAILURE,
    }
)


class CheckpointError(HoldfastError):
    """A checkpoint did not complete.

    The arguments are a reason or a text, then a further text or the cause: ``CheckpointError(reason)``,
    ``CheckpointError(reason, "chk-7: ...")``, ``CheckpointError(reason, cause)``, ``CheckpointError("...", cause)``.

    Attributes:
        reason: The reason; None if only a text was given.
    """

    def __init__(
        self,
        reason: CheckpointFailureReason | str,
        message: str | BaseException | None = None,
        cause: BaseException | None = None,
    ) -> None:
        if isinstance(message, BaseException):
            message, cause = None, message
        head = reason.message if isinstance(reason, CheckpointFailureReason) else reason
        super().__init__(f"{head} {message}" if message else head)
        self.reason = reason if isinstance(reason, CheckpointFailureReason) else None
        if cause is not None:
            self.__cause__ = cause

    def get_checkpoint_failure_reason(self) -> CheckpointFailureReason | None:
        """Return the reason, or None if only a text was given."""
        return self.reason


class StopWithSavepointStoppingError(CheckpointError):
    """A job that was stopped with a savepoint wrote the savepoint and failed afterwards.

    Attributes:
        savepoint_path: The savepoint, which is complete.
    """

    def __init__(self, savepoint_path: str, job_id: str) -> None:
        super().__init__(
            f"A savepoint has been created at: {savepoint_path}, but the corresponding job {job_id} failed during "
            "stopping. Start it again from the savepoint (-s) or from its newest checkpoint; both have the same state."
        )
        self.savepoint_path = savepoint_path


class RestoreError(HoldfastError):
    """A restore was rejected before it changed anything.

    Attributes:
        missing_uids: Operators with state in the checkpoint that the program does not have.
        new_uids: Operators of the program without state in the checkpoint.
    """

    def __init__(
        self, missing_uids: Iterable[str] = (), new_uids: Iterable[str] = (), message: str | None = None
    ) -> None:
        self.missing_uids = tuple(missing_uids)
        self.new_uids = tuple(new_uids)
        if message is None:
            message = (
                f"The checkpoint has state for operators that the program does not have: {list(self.missing_uids)!r}; "
                f"operators of the program without state in it: {list(self.new_uids)!r}. Give the renamed operators "
                "their old uid, or drop the state with execution.state-recovery.ignore-unclaimed-state: true."
            )
        super().__init__(message)


class CorruptFileError(HoldfastError):
    """A file is truncated, has a flipped bit, or is not what its name says.

    Attributes:
        path: The file.
        offset: Where the damage was found, in bytes; None if unknown.
        reason: The damage to the file.
    """

    def __init__(self, path: str, offset: int | None, message: str) -> None:
        at = f" at byte {offset}" if offset is not None else ""
        if len(message) > _LONGEST_REASON:  # the reason quotes the damage, which may have any length
            message = f"{message[:_LONGEST_REASON]}... ({len(message)} characters)"
        super().__init__(f"File {path!r} is damaged{at}: {message}")
        self.path = path
        self.offset = offset
        self.reason = message


class FormatVersionError(HoldfastError):
    """A file was written by a newer version of Holdfast.

    Attributes:
        path: The file.
        found: The format version in the file.
        supported: The newest version that this release reads.
    """

    def __init__(self, path: str, found: int, supported: int) -> None:
        super().__init__(
            f"File {path!r} has format version {found}, this release reads versions up to {supported}. "
            "Upgrade Holdfast, or restore a checkpoint of the older release."
        )
        self.path = path
        self.found = found
        self.supported = supported


class FencedError(HoldfastError):
    """Another process with a higher token leads. Stop, and write or delete nothing."""


class ConflictError(HoldfastError):
    """A compare-and-set lost against a concurrent write; nothing was written."""


class PossibleInconsistentStateError(HoldfastError):
    """A write may or may not have happened. Discard nothing that it may refer to."""


class AlreadyExistError(HoldfastError):
    """The object to be created exists already."""


class NotExistError(HoldfastError):
    """The requested object does not exist."""


class StorageError(HoldfastError):
    """A storage operation failed permanently: disk full, permission denied, and the like."""


class CheckpointDeclinedError(StorageError):
    """A sink cannot make its output durable now, keeps it, and tries again at the next checkpoint.

    The writer of a sink may raise it from `flush`. A real-time job then declines the checkpoint
    (`CheckpointFailureReason.CHECKPOINT_DECLINED`) and goes on, as long as
    execution.checkpointing.tolerable-failed-checkpoints allows. A job by epochs restarts, as for any `StorageError`.
    """


class UnsharedStorageError(StorageError):
    """A worker does not see a file that the driver wrote in the checkpoint directory."""


class EngineError(HoldfastError):
    """The engine failed, and not the program."""


class InputError(EngineError):
    """An input cannot be read: a file is damaged, missing or not permitted."""


class InputGoneError(InputError):
    """Unread rows of an input are lost, and the job was not configured to go on without them."""


class EngineUnavailableError(EngineError):
    """A machine, a connection or a service of the engine was unavailable; its operator repairs that."""


class EngineLostError(EngineError):
    """The engine is lost for this process; only a new process can go on."""


class InconsistentEpochError(HoldfastError):
    """The acknowledgements of an epoch disagree about what was read, so the epoch runs again.

    Attributes:
        details: Which subtasks disagree about what.
    """

    def __init__(self, details: Any) -> None:
        super().__init__(f"The acknowledgements of the epoch disagree: {details}. The epoch runs again.")
        self.details = details


class JobExecutionError(HoldfastError):
    """A job ended as FAILED; the cause is its last failure."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        if cause is not None:
            self.__cause__ = cause


# Flink's names.
IllegalConfigurationError = ConfigurationError
IllegalConfigurationException = ConfigurationError
StateMigrationException = StateMigrationError
CheckpointException = CheckpointError
StopWithSavepointStoppingException = StopWithSavepointStoppingError
AlreadyExistException = AlreadyExistError
NotExistException = NotExistError
PossibleInconsistentStateException = PossibleInconsistentStateError
JobExecutionException = JobExecutionError

_CLASSES: Final = {
    name: value for name, value in globals().items() if isinstance(value, type) and issubclass(value, HoldfastError)
}
