"""The PyFlink programs: each is short, recorded, and prints here what PyFlink has printed, or it says why not.

They run on the epoch runner, without Java; on Spark they run in `tests/spark/test_pyflink_programs.py`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from holdfast.datastream.environment.launch import ProgramPlanned, plan_only
from holdfast.runtime.graph.stream_graph import SourceNode
from holdfast.runtime.job.options import DEFAULT_PARALLELISM
from holdfast.testing.epoch_runner import OPTIONS, LocalEngine, run_job
from tests.pyflink_programs import FOLDER, Program, programs

PROGRAMS = [program.name for program in programs()]
ON_SPARK_ONLY = ("streams/collected", "streams/files_in_and_out", "streams/numbers")
"""They do something after their job, or have a source that Spark reads."""

SLOW = ("streams/ask_a_service",)
"""They wait for seconds."""

SEES_EPOCHS = ("time/one_timer", "time/time_of_elements", "triggers/continuous_trigger")
"""They show watermarks, or what timers have done between two elements."""

AS_FLINK_BY_ELEMENT = ("windows/late_data",)
"""What they print depends on where epochs are cut: as PyFlink, whose watermarks come between any two elements."""

RUN = [name for name in PROGRAMS if name not in (*ON_SPARK_ONLY, *SLOW)]


def test_there_are_thirty_programs_and_nothing_beside_them() -> None:
    assert len(PROGRAMS) >= 30
    recordings = {path.name.partition(".")[0] for path in FOLDER.rglob("*.txt")}
    assert recordings == {name.rpartition("/")[2] for name in PROGRAMS}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_short_and_recorded_and_says_what_differs(name: str) -> None:
    program = Program(name)
    assert 10 <= program.path.read_text().count("\n") <= 60
    recorded = program.on_flink.read_text().splitlines()
    assert program.here.exists() == (program.reason is not None)
    if program.here.exists():
        assert program.arranged(recorded) != program.arranged(program.expected())


def printed(program: Program, place: Path, *, of_epoch: int | None = None) -> None:
    """Runs a program; so many elements of each collection are an epoch, or all of them."""
    copy = place / program.path.name
    copy.write_text(program.replaced())
    with pytest.MonkeyPatch.context() as patched, plan_only(), pytest.raises(ProgramPlanned) as raised:
        patched.setattr(sys, "argv", [str(copy)])
        runpy.run_path(str(copy), run_name="__main__")
    planned = raised.value.program
    collections = {source.uid: list(source.collection) for source in planned.graph.of(SourceNode)}
    most = max(map(len, collections.values()))
    size = of_epoch or most
    inputs = [
        {uid: elements[start : start + size] for uid, elements in collections.items()} for start in range(0, most, size)
    ]
    engine = LocalEngine(inputs, is_bounded=True, source_tasks=1)
    parallelism = planned.configuration.get(DEFAULT_PARALLELISM) or 1
    run_job(
        planned.graph, place / "job", engine, {**OPTIONS, **planned.configuration.to_dict()}, parallelism=parallelism
    ).run()


@pytest.mark.parametrize("name", RUN)
def test_a_program_prints_what_it_prints_on_flink(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(name)
    printed(program, tmp_path)
    assert program.arranged(capsys.readouterr().out.splitlines()) == program.arranged(program.expected())


@pytest.mark.parametrize("name", [name for name in RUN if name not in SEES_EPOCHS])
def test_a_program_prints_the_same_where_each_element_is_an_epoch(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(name)
    printed(program, tmp_path, of_epoch=1)
    on_flink = program.on_flink.read_text().splitlines()
    expected = on_flink if name in AS_FLINK_BY_ELEMENT else program.expected()
    assert program.arranged(capsys.readouterr().out.splitlines()) == program.arranged(expected)
