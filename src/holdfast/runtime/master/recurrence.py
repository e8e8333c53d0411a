"""Whether a new attempt can help after a failure: what cannot get better, and what comes again and again.

================================  ==========================================================================
a new attempt in this process     fails the job
================================  ==========================================================================
meets it again (`FATAL`)          at once
probably meets it again           when it has come `restart-strategy.identical-failures` times in a row
(`OF_THE_PROGRAM`)
is not known to, or is a slip     when it has come `restart-strategy.identical-unknown-failures` times in a row
in the code of a sink (`SLIPS`)
is what it needs (`OF_MACHINES`)  when the restart strategy says so, but storage that a worker has never seen: that of
                                  a job without a checkpoint counts as what is not known
================================  ==========================================================================

In a row means that no checkpoint completed between.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Any, Final

from holdfast.errors import (
    ConfigurationError,
    ConflictError,
    CorruptFileError,
    FormatVersionError,
    HoldfastError,
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
from holdfast.ha.election.leader_election import LeaderElectionError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.option import ConfigOption
from holdfast.runtime.commit.sink_committing import SinkFailedError
from holdfast.runtime.job.engine import EngineAwayError, EngineLostError, InputError, InputGoneError
from holdfast.runtime.job.history import first_line
from holdfast.runtime.job.options import IDENTICAL_FAILURES, IDENTICAL_UNKNOWN_FAILURES

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
"""Failures that a new attempt in this process would meet again."""

OF_THE_PROGRAM: Final = (UserFunctionError, OutputTypeError, NullKeyError, StateError, InputError)
"""Failures that a new attempt will probably meet again, unless what a function calls, or reads, was down for a moment.
"""

OF_MACHINES: Final = (
    EngineAwayError,
    StorageError,
    PossibleInconsistentStateError,
    ConflictError,
    ConnectionError,
    TimeoutError,
)
"""Failures, or causes of them, of what the job runs on: however long that is away, a new attempt is right."""

SLIPS: Final = (
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
"""What Python raises where code is wrong. Clients of servers have errors of their own, or those of the system."""

_CHANGING: Final = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|holdfast-query-\w+|\d+")


class Recurrence:
    """Remembers the last failure of a job in this process; used by one thread, but for `tries`.

    Args:
        configuration: The options of the job.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._of_the_program = IDENTICAL_FAILURES, configuration.get(IDENTICAL_FAILURES)
        self._unknown = IDENTICAL_UNKNOWN_FAILURES, configuration.get(IDENTICAL_UNKNOWN_FAILURES)
        self._last: tuple[Any, ...] | None = None
        self._identical = 0
        self._failures = 0
        self._newest: object = None

    def tries(self, newest: object) -> int:
        """How many attempts have failed in a row.

        Args:
            newest: The newest completed checkpoint by now.
        """
        return self._failures if newest == self._newest else 0

    def hopeless(self, error: HoldfastError, newest: object) -> str | None:
        """Take note of a failure after which the strategy would restart.

        Args:
            error: The failure.
            newest: The newest completed checkpoint.

        Returns:
            Why no restart will help, None if one may.
        """
        self._failures = self.tries(newest) + 1
        self._newest = newest
        cause, (option, limit) = self._kind_of(error, has_run=newest is not None)
        identity = None if cause is None else (*cause, newest)
        self._identical = self._identical + 1 if identity is not None and identity == self._last else 1
        self._last = identity
        if identity is None or not limit or self._identical < limit:
            return None
        return f"{self._identical} times in a row in the same way, so no restart will help ({option.key})"

    def _kind_of(
        self, error: HoldfastError, *, has_run: bool
    ) -> tuple[tuple[Any, ...] | None, tuple[ConfigOption[int], int]]:
        if isinstance(error, OF_THE_PROGRAM):
            return (type(error), getattr(error, "uid", None)), self._of_the_program
        if isinstance(error, SinkFailedError) and (slip := _slip_of(error)) is not None:
            return (type(error), error.uid, *slip), self._unknown
        # A mount of one host may go away and come back; where no epoch ever completed it was never there.
        if not has_run and any(isinstance(cause, UnsharedStorageError) for cause in _causes(error)):
            return (UnsharedStorageError,), self._unknown
        if any(isinstance(cause, OF_MACHINES) for cause in _causes(error)):
            return None, self._unknown
        return (type(error), getattr(error, "uid", None), _unchanging(error)), self._unknown


def _slip_of(error: SinkFailedError) -> tuple[Any, ...] | None:
    """What is wrong in the code of a sink, and the line where; None if its target may be away.

    It may be wherever anything but a slip is involved: a `finally` that closes a connection which was never made
    raises an AttributeError, while a server is away for an hour. A reason that was never raised is not a slip.
    """
    causes = [cause for cause in _involved(error) if not isinstance(cause, HoldfastError)]
    if not causes or causes[0].__traceback__ is None or not all(isinstance(cause, SLIPS) for cause in causes):
        return None
    place = traceback.extract_tb(causes[0].__traceback__)[-1]
    return type(causes[0]), _unchanging(causes[0]), place.filename, place.lineno


def _unchanging(error: BaseException) -> str:
    return _CHANGING.sub("#", first_line(str(error)))


def _involved(error: BaseException) -> Iterator[BaseException]:
    """The error, what it came of, and what was being handled when it came, also where `from None` hides that."""
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
