"""A program that is submitted: counts words of files as they come, on the epoch runner instead of Spark.

``submitted_words.py INPUT OUTPUT``: file n of INPUT, ``n.txt``, is epoch n; the file ``end`` is the end of the input. A
file ``INPUT/broken`` makes it fail before it executes its job, as a program does whose storage is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, RuntimeContext
from holdfast.datastream.environment.launch import effective_configuration, notify_launched
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.ha.checkpoint_recovery import checkpoints_directory
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.job.engine import EpochDriver, Outcome
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.epoch_runner import EpochProgram, LocalEngine, LocalInput, run_job


class Count(KeyedProcessFunction):
    """Counts each word."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Gets the state."""
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        """Emits the word and how often it has come."""
        if value[0] == "poison":
            raise ValueError("this word is poison")
        count = self.count.value() + 1
        self.count.update(count)
        yield value[0], count


class FileEngine(LocalEngine):
    """Runs an epoch for each file that somebody adds."""

    def __init__(self, directory: Path) -> None:
        super().__init__([])
        self._files = directory

    def drive(self, driver: EpochDriver) -> Outcome:
        """Runs until the input has ended or the job is stopped."""
        while not driver.is_stopping:
            driver.tick_if_due()
            file = self._files / f"{self._next}.txt"
            if file.exists():
                words = [(word,) for word in file.read_text().split()]
                driver.process(LocalInput(self._next, {"words": words}, False))
                self._next += 1
            elif (self._files / "end").exists():
                return Outcome.ENDED
            else:
                driver.wait(0.05)
        return Outcome.STOPPED


def main(inputs: Path, output: Path) -> None:
    """Runs the job to its end."""
    print(f"counts the words in {inputs}", flush=True)
    if (inputs / "broken").exists():
        raise OSError("the storage of the input is not mounted")
    program = EpochProgram()
    words = program.source("words", "word string")
    words.key_by("word", "string").process(Count(), output_type="word string, n bigint").uid("count").sink_to(
        ParquetFileSink(str(output))
    ).uid("out")
    options = effective_configuration(Configuration({"restart-strategy.type": "none"}))
    root = checkpoints_directory(options)
    assert root is not None
    name = options.get_string("pipeline.name", "words")
    assert name is not None
    master = run_job(program.get_stream_graph(), root, FileEngine(inputs), options.to_dict(), name=name)
    notify_launched(JobClient(master)).run_to_end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
