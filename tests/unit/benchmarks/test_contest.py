"""The pieces of the benchmarks that need no engine: the input, the registry, and the arithmetic."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import keyed_count
from benchmarks.engines import pyflink
from benchmarks.harness import contest
from benchmarks.harness.input_files import Source, epoch_files
from benchmarks.harness.warm_process import WarmProcess
from benchmarks.harness.workload import Workload, chosen_engines, engine_module, engine_names, settings_of
from tests.documentation import ROOT


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    return Workload(2_000, 50, "parquet", inputs=str(tmp_path / "inputs"), workspace=str(tmp_path / "engine"))


def test_every_engine_of_the_comparison_is_one_file() -> None:
    assert set(keyed_count.ENGINES) <= set(engine_names())
    assert chosen_engines("floor, spark-tws") == ["floor", "spark-tws"]


def test_an_engine_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(SystemExit, match=r"no engine 'flor': choose from bare, .*chain-h.*, floor, .*, holdfast-c"):
        chosen_engines("floor,flor")


def test_an_engine_takes_part_with_settings_of_spark_and_beside_itself_without_them() -> None:
    names = chosen_engines("floor, floor@spark.a=1;spark.b=x=y", settings=True)
    assert [settings_of(name) for name in names] == [{}, {"spark.a": "1", "spark.b": "x=y"}]
    assert engine_module(names[1]) is engine_module("floor")


@pytest.mark.parametrize("setting", ["a=1", "spark.a"])
def test_what_is_no_setting_of_spark_is_refused(setting: str) -> None:
    with pytest.raises(SystemExit, match=rf"'{setting}' of 'floor@{setting}' is no setting of Spark"):
        chosen_engines(f"floor@{setting}", settings=True)


def test_settings_are_refused_where_they_would_not_act() -> None:
    with pytest.raises(SystemExit, match="engines take no settings of Spark here"):
        chosen_engines("floor@spark.a=1")
    with pytest.raises(SystemExit, match="pyflink does not run on Spark"):
        chosen_engines("pyflink@spark.a=1", settings=True)


def test_processor_time_is_that_of_all_processes_of_a_program(tmp_path: Path) -> None:
    spin = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    program = (
        f"import subprocess, sys\nfor line in sys.stdin:\n"
        f"    subprocess.run([sys.executable, '-c', {spin!r}])\n    print(1, flush=True)"
    )
    process = WarmProcess([sys.executable, "-c", program], tmp_path, 120)
    try:
        before = process.processor_seconds()
        assert process.ask("go").strip() == "1"
        assert 0.25 < process.processor_seconds() - before < 10
    finally:
        process.close()


def test_a_workload_reaches_the_process_of_its_engine_unchanged(workload: Workload) -> None:
    assert Workload.from_json(workload.to_json()) == workload


def test_all_engines_get_the_same_epochs_with_all_keys(workload: Workload, tmp_path: Path) -> None:
    first = pq.read_table(*epoch_files(workload, 0))
    other = Workload(2_000, 50, "parquet", inputs=str(tmp_path / "elsewhere"), workspace=workload.workspace)
    assert first.equals(pq.read_table(*epoch_files(other, 0)))
    assert not first.equals(pq.read_table(*epoch_files(workload, 1)))
    assert [str(field.type) for field in first.schema] == ["string", "int64", "int64"]
    assert first.num_rows == 2_000
    assert len(first["key"].unique()) == 50


def test_a_state_is_filled_with_each_key_once_before_keys_are_drawn(workload: Workload) -> None:
    filled = replace(workload, fill=20)
    assert filled.fill_epochs == 3
    keys = [pq.read_table(*epoch_files(filled, epoch))["key"].to_pylist() for epoch in range(4)]
    assert [*keys[0], *keys[1], *keys[2]] == [f"key-{number:09d}" for number in range(50)]
    assert len(keys[3]) == 2_000


def test_several_files_of_an_epoch_have_the_rows_of_one(workload: Workload) -> None:
    several = replace(workload, files=3)
    files = epoch_files(several, 0)
    assert [pq.read_metadata(path).num_rows for path in files] == [667, 667, 666]
    assert pq.read_table(*epoch_files(workload, 0)).equals(pa.concat_tables(map(pq.read_table, files)))
    assert len({path.stat().st_mtime for path in files}) == 1
    Source(several).add(2)
    source = Source(several)
    assert (source.epochs, source.files, len(list(source.directory.iterdir()))) == (2, 3, 6)


def test_an_engine_goes_on_where_another_one_has_ended(workload: Workload) -> None:
    Source(workload).add(2)
    source = Source(workload)
    source.add(1)
    assert source.epochs == len(list(source.directory.iterdir())) == 3


def test_epochs_appear_in_the_source_when_they_are_asked_for_oldest_first(workload: Workload) -> None:
    source = Source(workload)
    source.add(2)
    source.add(1)
    files = sorted(source.directory.iterdir(), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in files] == [f"epoch-{number:06d}.parquet" for number in range(3)]
    assert len({path.stat().st_mtime for path in files}) == 3


def test_a_result_is_the_median_of_its_rounds() -> None:
    result = contest.Result("floor", 100, (0.5, 0.2, 10.0), (0.9, 0.4, 1.1))
    assert result.rows_per_second == 200.0
    assert result.to_json() == {
        "engine": "floor",
        "rows_per_second": 200.0,
        "milliseconds_per_epoch": 500.0,
        "rounds": [200.0, 500.0, 10.0],
        "processor_milliseconds_per_epoch": [900, 400, 1100],
    }


@pytest.mark.parametrize("begins", [False, True], ids=["while the engine works", "while the watchdog is started"])
def test_a_contest_that_is_told_to_end_does_not_wait_for_the_watchdog_of_an_engine(
    tmp_path: Path, begins: bool
) -> None:
    """Which bites after half an hour: however slow the machine is, it is not that slow."""
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\nread epochs\ntouch working\nexec cat\n")  # until nobody asks any more
    engine.chmod(0o755)
    program = """
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from benchmarks.harness import contest
from benchmarks.harness.workload import Workload
place = Path(sys.argv[1])
class Struck(threading.Timer):
    def start(self):
        super().start()
        signal.raise_signal(signal.SIGTERM)
if len(sys.argv) > 2:
    threading.Timer = Struck
contest.engine_module = lambda name: SimpleNamespace(interpreter=lambda cache: str(place / "engine"))
contest.hold(["never-ends"], Workload(1, 1, "discard", "", ""), contest.Course(1, 1, 0, 1), place)
"""
    command = [sys.executable, "-c", program, tmp_path, *(["begins"] if begins else [])]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as contest:
        try:
            while not begins and not list(tmp_path.glob("contest-*/*/working")):
                assert contest.poll() is None
                time.sleep(0.02)
            if not begins:
                contest.terminate()
            assert contest.wait() == 128 + signal.SIGTERM
        finally:
            contest.kill()


def test_an_epoch_of_pyflink_ends_when_its_slower_subtask_has_seen_its_share(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("101.0\n102.0\n103.5\n")
    (tmp_path / "b").write_text("100.5\n104.0\n")
    assert pyflink.epoch_seconds(tmp_path, 2, started=100.0) == [1.0, 3.0]


def test_slow_engines_are_measured_in_fewer_epochs():
    course = contest.Course(warm_up=3, rounds=5, settling=4, epochs=8)
    assert course.for_one_with([9.0, 0.7, 0.6]) == course
    assert course.for_one_with([]) == course
    assert course.for_one_with([30.0, 20.0]) == contest.Course(warm_up=3, rounds=5, settling=1, epochs=2)
