"""`stream.print()`: the elements of each completed epoch, as lines on the driver's standard output.

Lines appear after the commit point, so they are what really happened. They appear again only if the process dies
between printing and noting that it has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.datastream.sinks.task_owned import checked_paths, sweep_task_owned
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext, Sink, WriterInitContext
from holdfast.runtime.function.staging import ParquetStaging, read_staged
from holdfast.storage.job.naming import FileName
from holdfast.types.conversion.arrow import batch_to_elements
from holdfast.types.conversion.flink_text import printed_text_of
from holdfast.types.information.type_information import TypeInformation

SUFFIX: Final = ".printed"


class PrintSink(Sink):
    """Prints each element as PyFlink does, with its prefixes: identifier, and subtask if there are several.

    Elements of a declared type look like ``(kelp,1)`` or ``+I[kelp,1]``, others as `str` shows them.

    Args:
        element_type: Type of the stream's elements.
        sink_identifier: A prefix that tells the lines of several streams apart.
    """

    def __init__(self, element_type: TypeInformation, sink_identifier: str | None = None) -> None:
        self._type = element_type
        self._identifier = sink_identifier

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        """Stages a file in the job's directory."""
        name = context.file_name(SUFFIX)
        return ParquetStaging(context.staging_dir, name, {"file": name, "parallelism": context.parallelism})

    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Prints."""
        return _PrintingCommitter(self._type, self._identifier, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes staged files that no checkpoint names any more."""
        return sweep_task_owned(context, is_dead)


class _PrintingCommitter(Committer):
    def __init__(self, element_type: TypeInformation, identifier: str | None, context: CommitterInitContext) -> None:
        self._type = element_type
        self._identifier = identifier
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        lines: list[str] = []
        text = printed_text_of(self._type)
        for request, path in zip(requests, checked_paths(self._context, requests), strict=True):
            prefix = self._prefix(request)
            for batch in read_staged([path]).to_batches():
                lines.extend(f"{prefix}{text(element)}\n" for element in batch_to_elements(batch, self._type))
        sys.stdout.write("".join(lines))
        sys.stdout.flush()

    def _prefix(self, request: CommitRequest) -> str:
        parts = [self._identifier] if self._identifier else []
        if request.committable["parallelism"] > 1:
            parts.append(str(request.subtask + 1))
        return ":".join(parts) + "> " if parts else ""
