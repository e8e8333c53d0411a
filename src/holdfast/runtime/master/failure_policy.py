"""Decides whether a failure ends a job: which errors a new attempt cannot help, and how often one may repeat."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Any, Final

from holdfast.errors import (
    ConfigurationError,
    ConflictError,
    CorruptFileError,
    EngineLostError,
    EngineUnavailableError,
    FormatVersionError,
    HoldfastError,
    InputError,
    InputGoneError,
    NullKeyError,
    OutputTypeError,
    PossibleInconsistentStateError,
    RestoreError,
    StateError,
    StateMigrationError,
    StorageError,
    UnsharedStorageError,
    UserFunctionError,
)
from holdfast.ha.leader_election import LeaderElectionError
from holdfast.kernel.configuration import ConfigOption, Configuration
from holdfast.kernel.failure_text import summary
from holdfast.runtime.commit.commit_manager import SinkFailedError
from holdfast.runtime.job.options import IDENTICAL_FAILURES, IDENTICAL_UNKNOWN_FAILURES

# Which failures end the job, and when:
#
# - `FATAL`: at once, because a new attempt in this process meets the same failure.
# - `OutputTypeError`, `NullKeyError`, and type errors of a user function: at once too, unless that option is 0.
# - `PROGRAM_ERRORS`: after `restart-strategy.identical-failures` identical failures in a row.
# - Errors of an unknown kind, and `CODE_ERRORS` raised by a sink: after `restart-strategy.identical-unknown-failures`.
# - `INFRASTRUCTURE_ERRORS`: when the restart strategy gives up. Exception: storage that no worker has ever seen, in a
#   job without a checkpoint, counts as an unknown error.
#
# "In a row" means that no checkpoint completed in between. An input that cannot be read at the same place counts also
# with one: other inputs, and an interval of milliseconds, complete checkpoints before the place is reached again.
FATAL: Final = (
    ConfigurationError,
    CorruptFileError,
    EngineLostError,
    FormatVersionError,
    InputGoneError,
    LeaderElectionError,
    RestoreError,
    StateMigrationError,
)
"""Failures that a new attempt in this process meets again."""

PROGRAM_ERRORS: Final = (UserFunctionError, OutputTypeError, NullKeyError, StateError, InputError)
"""Failures that a new attempt probably meets again, unless a service that a function calls was down for a moment."""

INFRASTRUCTURE_ERRORS: Final = (
    EngineUnavailableError,
    StorageError,
    PossibleInconsistentStateError,
    ConflictError,
    ConnectionError,
    TimeoutError,
)
"""Failures of the infrastructure, or caused by it: a new attempt can help, however long it is unavailable."""

CODE_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
"""Errors that Python raises for wrong code. Clients of servers raise their own errors, or those of the system."""

_CHANGING: Final = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|holdfast-query-\w+|\d+")


class RepeatedFailures:
    """Counts the failures of a job in this process. Used by one thread, except `failures_in_a_row`.

    Args:
        configuration: The options of the job.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._of_the_program = IDENTICAL_FAILURES, configuration.get(IDENTICAL_FAILURES)
        self._unknown = IDENTICAL_UNKNOWN_FAILURES, configuration.get(IDENTICAL_UNKNOWN_FAILURES)
        self._last: tuple[Any, ...] | None = None
        self._last_place: str | None = None
        self._identical = 0
        self._failures = 0
        self._newest: object = None

    def failures_in_a_row(self, newest: object) -> int:
        """Return the number of failed attempts in a row.

        Args:
            newest: The newest completed checkpoint now.
        """
        return self._failures if newest == self._newest else 0

    def give_up_reason(self, error: HoldfastError, newest: object) -> str | None:
        """Count a failure after which the restart strategy would restart.

        Args:
            error: The failure.
            newest: The newest completed checkpoint.

        Returns:
            Why no restart can help; None if one may.
        """
        self._failures = self.failures_in_a_row(newest) + 1
        self._newest = newest
        cause, (option, limit) = self._kind_of(error, has_run=newest is not None)
        identity = None if cause is None else (*cause, newest)
        place = str(error) if isinstance(error, InputError) else None
        is_same = (identity is not None and identity == self._last) or (place is not None and place == self._last_place)
        self._identical = self._identical + 1 if is_same else 1
        self._last, self._last_place = identity, place
        if limit and _is_final(error):
            return "and no restart can help"
        if identity is None or not limit or self._identical < limit:
            return None
        return f"{self._identical} times in a row in the same way, so no restart can help ({option.key})"

    def _kind_of(
        self, error: HoldfastError, *, has_run: bool
    ) -> tuple[tuple[Any, ...] | None, tuple[ConfigOption[int], int]]:
        if isinstance(error, PROGRAM_ERRORS):
            return (type(error), getattr(error, "uid", None)), self._of_the_program
        if isinstance(error, SinkFailedError) and (code_error := _code_error_of(error)) is not None:
            return (type(error), error.uid, *code_error), self._unknown
        # A mount of one host may disappear and come back; if no epoch ever completed, it never existed.
        if not has_run and any(isinstance(cause, UnsharedStorageError) for cause in _causes(error)):
            return (UnsharedStorageError,), self._unknown
        if any(isinstance(cause, INFRASTRUCTURE_ERRORS) for cause in _causes(error)):
            return None, self._unknown
        return (type(error), getattr(error, "uid", None), _unchanging(error)), self._unknown


def _is_final(error: HoldfastError) -> bool:
    """Return whether the next attempt meets the same error: a type, a key or a function does not fit."""
    return isinstance(error, OutputTypeError | NullKeyError) or (
        isinstance(error, UserFunctionError) and error.is_final
    )


def _code_error_of(error: SinkFailedError) -> tuple[Any, ...] | None:
    """Return the coding error that a sink raised, and its line; None if its target may be unavailable.

    It may be unavailable if any other error is involved: a `finally` that closes a connection which was never opened
    raises an AttributeError while a server is down. A reason that was never raised is not a coding error.
    """
    causes = [cause for cause in _involved(error) if not isinstance(cause, HoldfastError)]
    if not causes or causes[0].__traceback__ is None or not all(isinstance(cause, CODE_ERRORS) for cause in causes):
        return None
    place = traceback.extract_tb(causes[0].__traceback__)[-1]
    return type(causes[0]), _unchanging(causes[0]), place.filename, place.lineno


def without_changing_parts(text: str) -> str:
    """Return a text without numbers and ids, which differ between two failures of the same kind."""
    return _CHANGING.sub("#", text)


def _unchanging(error: BaseException) -> str:
    return without_changing_parts(summary(str(error)))


def _involved(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an error, its causes and its contexts, including those that `from None` hides."""
    seen: list[BaseException] = []
    ahead: list[BaseException | None] = [error]
    while ahead:
        cause = ahead.pop(0)
        if cause is not None and not any(cause is each for each in seen):
            seen.append(cause)
            yield cause
            ahead += [cause.__cause__, cause.__context__]


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is each for each in seen):
        seen.append(cause)
        yield cause
        cause = cause.__cause__
