"""A program whose sources a test feeds: what a user writes with streams, run epoch by epoch in this process.

Job master, tasks, checkpoints and sinks are those of a job on Spark; Spark and Java are not needed::

    program = EpochProgram()
    words = program.source("words", "word string")
    words.key_by("word").process(Count()).sink_to(sink).uid("out")
    program.run(tmp_path, [{"words": [("kelp",), ("rock",)]}, {"words": [("kelp",)]}])

Run again over the same directory with more inputs, it resumes from the newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.datastream.environment.stream_execution_environment import StreamExecutionEnvironment
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.kernel.clock import Clock
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.graph.stream_graph import SourceNode
from holdfast.runtime.job.status import JobStatus
from holdfast.testing.epoch.epoch_runner import LocalEngine, run_job
from holdfast.types.conversion.convert import to_type

OPTIONS: Final[Mapping[str, str]] = {
    "restart-strategy.type": "none",
    "execution.checkpointing.cleaner.grace-period": "0 ms",
    "state.compaction.executor": "thread",
}
"""Options that a program on the epoch runner has unless others are given: a failure is seen at once."""


class EpochProgram(StreamExecutionEnvironment):
    """An environment whose sources are fed by the epoch runner."""

    def __init__(self) -> None:
        super().__init__(Configuration(), None)

    def source(self, uid: str, type_info: Any = None) -> DataStream:
        """A stream of the elements that the inputs have under `uid`.

        Args:
            uid: Of the source.
            type_info: Type of its elements, as `output_type` takes it; None for Python objects.
        """
        node = SourceNode(name=uid, uid=uid, element_type=to_type(type_info), is_streaming=True)
        return DataStream(self, node)

    def run(
        self,
        directory: Path | str,
        inputs: Sequence[Mapping[str, Sequence[Any]]],
        options: Mapping[str, Any] | None = None,
        *,
        name: str = "job",
        clock: Clock | None = None,
        parallelism: int = 2,
        source_tasks: int = 2,
        is_bounded: bool = False,
        amnesia: bool = False,
        interceptor: Callable[[int, int], None] | None = None,
    ) -> JobStatus:
        """Runs the program until its inputs are used up; blocks.

        Args:
            directory: Of the checkpoints. One that has checkpoints of the job is resumed, and of the inputs those are
                skipped that its newest checkpoint has seen.
            inputs: One mapping an epoch: elements by uid of their source.
            options: Of the job, over `OPTIONS`.
            name: From which the id of the job is derived.
            clock: For timers, intervals and pauses.
            parallelism: Subtasks of keyed operators that name none.
            source_tasks: Number of partitions of each source.
            is_bounded: Whether the inputs end with the last of them, or have only paused.
            amnesia: Forgets before each task what a worker process keeps from one to the next.
            interceptor: Called with (stage, subtask) before each task; the task fails with what it raises.

        Returns:
            FINISHED if the inputs are bounded, otherwise the status of a job that waits for more.

        Raises:
            JobExecutionError: The job has failed.
            HoldfastError: It could not start.
        """
        engine = LocalEngine(
            inputs, is_bounded=is_bounded, source_tasks=source_tasks, amnesia=amnesia, interceptor=interceptor
        )
        configuration = {**OPTIONS, **(options or {})}
        graph = self.get_stream_graph()
        return run_job(graph, directory, engine, configuration, name=name, clock=clock, parallelism=parallelism).run()
