"""A process lets go of runs that were deleted: while one is mapped its disk is not free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.datastream import KeyedProcessFunction
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state import ValueStateDescriptor
from holdfast.state.run_file import RunCache, RunMeta, SegmentData, forget_runs, open_run, write_run
from holdfast.storage.local import LocalFileSystem
from tests.stories.local import Program, master

FILES = LocalFileSystem()
TABLE = pa.table({"hash": pa.array([1], pa.uint64()), "value": ["x" * 100_000]})


def deleted_maps(directory: Path) -> set[str]:
    """The deleted files below a directory that this process still maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(None, 5)[5] for line in lines if str(directory) in line and line.endswith("(deleted)")}


@pytest.fixture(autouse=True)
def nothing_mapped() -> None:
    forget_runs()


def test_what_others_delete_is_let_go_as_new_runs_come(tmp_path: Path) -> None:
    meta = RunMeta(KeyGroupRange(0, 7), 8, 1, 1, {"kind": "tagged"})

    def opened(at: int) -> None:
        handle = write_run(FILES, str(tmp_path), f"shared/r{at}", {"s": SegmentData(TABLE, {})}, meta)
        open_run(FILES, str(tmp_path), handle).verify()

    for at in range(100):
        opened(at)
    for at in range(95):
        (tmp_path / f"shared/r{at}").unlink()
    assert len(deleted_maps(tmp_path)) == 95
    for at in range(100, 130):
        opened(at)
    assert not deleted_maps(tmp_path)


class Last(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "string"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.last.update(str(value.n) * 3000)
        yield value.n


def test_a_job_that_goes_on_lets_go_of_what_it_deleted_before(tmp_path: Path) -> None:
    inputs = [{"in": [(f"k{at}", n) for at in range(5)]} for n in range(100)]
    options = {"state.compaction.max-runs": "3", "execution.checkpointing.num-retained": "1"}

    def go(until: int) -> None:
        program = Program()
        program.source("in", "key string, n bigint").key_by("key").process(Last()).uid("last").print().uid("out")
        master(program, tmp_path, inputs[:until], options).run()

    go(50)
    before = deleted_maps(tmp_path)  # most is deleted when the job ends, and no run comes after that
    go(100)
    assert before and not before & deleted_maps(tmp_path)


def test_only_what_is_gone_is_forgotten() -> None:
    cache: RunCache[str] = RunCache(is_gone=lambda run: run == "gone")
    for at in range(20):
        cache.put(str(at), ("", 0, 0), "gone" if at % 2 else "there")
    for at in range(20, 40):
        cache.put(str(at), ("", 0, 0), "there")
    assert [cache.get(str(at), ("", 0, 0)) for at in range(20)] == ["there", None] * 10
