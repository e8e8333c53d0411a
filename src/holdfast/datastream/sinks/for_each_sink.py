"""`ForEachSink`: calls a function in the tasks for each element, at least once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.sink import Sink, SinkWriter, WriterContext, WriterInitContext

Process = Callable[[Any], Any]


class ForEachSink(Sink):
    """Calls a function for each element, in the task that has it: in a real-time job within milliseconds.

    At least once: elements since the last checkpoint are passed again after a failure.

    Args:
        write: A function of an element, or an object with `process(element)` and, if it needs them,
            `open(partition_id, epoch_id)` and `close(error)`, as `DataStreamWriter.foreach` of Spark takes it. Its
            `flush()`, if it has one, is called before each checkpoint and returns when all is delivered. In a real-time
            job `open` is called when the task begins, and again behind a barrier if it has returned False; `close` is
            called when the task ends.

    Raises:
        ConfigurationError: It is neither.

    Example:
        >>> import tempfile
        >>> from holdfast.testing import EpochProgram
        >>> program = EpochProgram()
        >>> words = program.source("words", "word string, n bigint")
        >>> _ = words.for_each(lambda row: print(row.word, row.n)).uid("shown")
        >>> job = program.run(tempfile.mkdtemp(), [{"words": [("kelp", 1)]}])
        kelp 1
    """

    def __init__(self, write: Any) -> None:
        if not callable(write) and not callable(getattr(write, "process", None)):
            raise ConfigurationError(
                f"for_each() takes a function of an element, or an object with process(element), not {write!r:.80}."
            )
        self.write = write

    def create_writer(self, context: WriterInitContext) -> SinkWriter:
        return _ForEachWriter(self.write, context)


class _ForEachWriter(SinkWriter):
    def __init__(self, target: Any, context: WriterInitContext) -> None:
        # A task has its own, as in Spark: other tasks of this process must not share its connections.
        self._target = target = copy.deepcopy(target) if hasattr(target, "process") else target
        self._process: Process = getattr(target, "process", target)
        opened = getattr(target, "open", None)
        self._is_open = True
        if opened is not None:
            self._is_open = opened(context.subtask, context.epoch) is not False
        self.writes_directly = self._is_open  # one that has refused an epoch is asked again for the next one

    def write(self, element: Any, context: WriterContext) -> None:
        if self._is_open:
            self._process(element)

    def flush(self, end_of_input: bool) -> None:
        flush = getattr(self._target, "flush", None)
        if flush is not None:
            flush()

    def close(self) -> None:
        self._close(None)

    def abort(self) -> None:
        self._close(RuntimeError("the task failed"))

    def _close(self, error: Exception | None) -> None:
        close = getattr(self._target, "close", None)
        if close is not None:
            close(error)
