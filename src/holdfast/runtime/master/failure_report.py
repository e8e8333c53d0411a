"""Log messages of failed attempts: the first error in full, the same error again in one line."""

from __future__ import annotations

from holdfast.errors import HoldfastError, NullKeyError, OutputTypeError, UserFunctionError
from holdfast.kernel.failure_text import summary, with_source_lines
from holdfast.kernel.secret import redacted_message
from holdfast.runtime.graph.stream_graph import StreamGraph
from holdfast.runtime.master.failure_policy import without_changing_parts


class FailureReports:
    """Describes the failures of one job in this process.

    Args:
        graph: The program, which has the names of the operators.
    """

    def __init__(self, graph: StreamGraph) -> None:
        self._names = {node.identity: node.name for node in graph.nodes}
        self._last: tuple[object, ...] | None = None
        self._attempt = 0

    def complete(self, error: HoldfastError) -> None:
        """Add to an error what only the driver knows: the name of the operator, and lines of the program."""
        if isinstance(error, UserFunctionError | OutputTypeError | NullKeyError):
            error.name = self._names.get(error.uid or "")
        if isinstance(error, UserFunctionError):
            error.details = with_source_lines(error.details)

    def described(self, error: HoldfastError, attempt: int) -> str:
        """Return the error for the log: with its details, unless they were logged for an earlier attempt.

        Args:
            error: The failure.
            attempt: Number of the attempt, from 1.
        """
        if not isinstance(error, UserFunctionError):
            self._last = None
            return f"{type(error).__name__}: {summary(redacted_message(error))}"
        error.is_logged = True
        if self._is_repeated(error):
            return f"the same error as attempt {self._attempt}"
        self._last, self._attempt = _identity(error), attempt
        return f"{type(error).__name__}: {error}"

    def mark_repeated(self, error: UserFunctionError) -> None:
        """Mark an error as logged if an earlier attempt failed with the same one."""
        error.is_logged = self._is_repeated(error)

    def _is_repeated(self, error: UserFunctionError) -> bool:
        return self._last is not None and self._last == _identity(error)


def _identity(error: UserFunctionError) -> tuple[object, ...]:
    """Return what two failures of one bug have in common; their elements may differ."""
    trace = error.details.partition("Traceback (most recent call last):")[2]
    return error.uid, without_changing_parts(trace or error.headline)
