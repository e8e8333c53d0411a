"""Runs the programs here, without a JVM."""

from __future__ import annotations

from itertools import accumulate, pairwise

from holdfast.datastream.environment.transform_with_state import apply_processor
from holdfast.kernel.clock import ManualClock
from holdfast.spark.stateful_processor import Processor, ProcessorInput
from holdfast.testing import EpochProgram
from holdfast.types.type_parser import to_type
from tests.spark.processors.programs import INPUT, at, milliseconds
from tests.stories.journal import Journal, pages

STATE = "key string, value bigint"


def given(program):
    """What a program's elements are, as `transform_with_state` makes them of frames."""
    rows, delay = to_type(INPUT), int(program.delay.split()[0]) * 1000 if program.delay else 0
    time = "at" if program.delay else None
    if program.initial is None:
        return INPUT, ProcessorInput(rows, tuple(program.keys), time, delay)
    elements = f"_row {rows.ddl}, _state struct<{STATE}>, _key0 string"
    return elements, ProcessorInput(rows, ("_key0",), time, delay, to_type(STATE))


def elements_of(program, number):
    batch = [(key, at(second), value) for key, second, value in program.batches[number]]
    if program.initial is None:
        return batch
    states = [(None, state, state[0]) for state in program.initial] if number == 0 else []
    return states + [(row, None, row[0]) for row in batch]


def emitted(program, directory, in_pandas=False, **how):
    """What comes out with each batch, sorted: of an epoch, or of a start where time passes before each of them."""
    elements, columns = given(program)
    running, step = EpochProgram(), program
    stream = running.source("rows", elements)
    while step is not None:
        in_frames = in_pandas or step.in_pandas
        wanted = Processor.checked(step.processor(), step.output, "Append", step.mode, step.ended, in_frames)
        stream = apply_processor(stream, wanted, columns).uid("tws" if step is program else "then")
        columns = ProcessorInput(wanted.output_type, ("key",), step.ended or None, is_timed=True)
        step = step.then
    stream.sink_to(Journal(directory / "out"))
    inputs = [{"rows": elements_of(program, number)} for number in range(len(program.batches))]
    ends = [0]
    for number, now in enumerate(accumulate(program.pauses), start=1):
        clock = ManualClock(milliseconds(at(now)))
        running.run(directory / "checkpoints", inputs[:number], clock=clock, **how)
        ends.append(max(epoch_of(page) for page in pages(directory / "out")))
    if not program.pauses:
        running.run(directory / "checkpoints", inputs, **how)
        ends = list(range(len(inputs) + 1))
    written = pages(directory / "out")
    return [
        sorted((plain(row) for page in written if begin < epoch_of(page) <= end for row in written[page]), key=str)
        for begin, end in pairwise(ends)
    ]


def epoch_of(page):
    return int(page[:6])


def plain(row):
    return [value.isoformat().removesuffix("+00:00") if hasattr(value, "isoformat") else value for value in row]
