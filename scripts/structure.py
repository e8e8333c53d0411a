"""Print how large the package is, and how many files and functions four paths cross.

    .venv/bin/python scripts/structure.py

The paths are traced in one small job on the epoch runner, in one process and without a JVM:

- row: what the task of a keyed function with value state runs in an epoch;
- checkpoint: from the accepted epoch to the end of its notification, the commit of a file sink included;
- query: one `get_kv_state` of a client, with the server that answers;
- recovery: from the start of a job over an existing checkpoint to its first task.

Files and functions of `holdfast.testing` do not count. `docs/architecture.md` has the figures.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "holdfast"
sys.path.insert(0, str(ROOT / "src"))

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink  # noqa: E402
from holdfast.datastream.state import ValueStateDescriptor  # noqa: E402
from holdfast.kernel.ids import JobID  # noqa: E402
from holdfast.queryable import QueryableStateClient  # noqa: E402
from holdfast.queryable.server.server import StateServer  # noqa: E402
from holdfast.runtime.commit.checkpointing import EpochCheckpoints  # noqa: E402
from holdfast.runtime.master.job_master import JobMaster  # noqa: E402
from holdfast.runtime.task.stage_task import StageTask  # noqa: E402
from holdfast.storage.job_directory import JobDirectory  # noqa: E402
from holdfast.storage.register import FileRegister  # noqa: E402
from holdfast.storage.scheme import file_system_for  # noqa: E402
from holdfast.testing import EpochProgram  # noqa: E402

PATHS = ("row", "checkpoint", "query", "recovery")


class Tracer:
    """Collects the functions that run while a path is open.

    Functions in the thread that opened the path count for it. Those in other threads count for `elsewhere`: sinks
    commit in threads of their own, and a server answers in its own.
    """

    def __init__(self) -> None:
        self.codes: dict[str, set[CodeType]] = {name: set() for name in PATHS}
        self.here: str | None = None
        self.elsewhere: str | None = None
        self._thread = threading.get_ident()

    def start(self) -> None:
        threading.setprofile(self._profile)  # of all threads that begin from now on
        sys.setprofile(self._profile)

    def stop(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        path = self.here if threading.get_ident() == self._thread else self.elsewhere
        if event == "call" and path is not None:
            self.codes[path].add(frame.f_code)

    def functions(self, path: str) -> set[tuple[str, str]]:
        found = ((Path(code.co_filename), code.co_qualname) for code in self.codes[path])
        return {
            (str(file.relative_to(SOURCE)), name)
            for file, name in found
            if file.is_relative_to(SOURCE) and not file.is_relative_to(SOURCE / "testing")
        }

    def wrap(self, path: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that opens the path while it runs."""

        def traced(*arguments: Any, **named: Any) -> Any:
            before, self.here = self.here, path
            try:
                return function(*arguments, **named)
            finally:
                self.here = before

        return traced

    def wrap_generator(self, path: str, function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return a generator function that opens the path while it runs, and not while its consumer does."""

        def traced(*arguments: Any, **named: Any) -> Iterator[Any]:
            items = self.wrap(path, function)(*arguments, **named)
            following = self.wrap(path, lambda: next(items, StopIteration))
            while (item := following()) is not StopIteration:
                yield item

        return traced


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor("n", "bigint")
        descriptor.set_queryable("counts")
        self.n = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.n.value() or 0) + value.n
        self.n.update(n)
        yield value.word, n


def run(directory: Path, epochs: int) -> None:
    program = EpochProgram()
    words = program.source("words", "word string, n bigint")
    counts = words.key_by("word").process(Count(), "word string, n bigint").uid("count")
    counts.sink_to(ParquetFileSink(str(directory / "out"))).uid("out")
    program.run(directory / "checkpoints", [{"words": [("kelp", 1), ("rock", 2)]}] * epochs, name="structure")


def trace(tracer: Tracer, directory: Path) -> None:
    """Run the job, start it again, and query its state."""
    stage_run, accepted, master_run = StageTask.run, EpochCheckpoints.on_epoch_accepted, JobMaster.run
    run(directory, 2)  # warm: what is imported and cached once is no part of a path

    StageTask.run = tracer.wrap_generator("row", stage_run)  # type: ignore[method-assign]
    EpochCheckpoints.on_epoch_accepted = tracer.wrap("checkpoint", accepted)  # type: ignore[method-assign]
    JobMaster.run = tracer.wrap("recovery", master_run)  # type: ignore[method-assign]
    first_task = StageTask.run

    def recovered(*arguments: Any, **named: Any) -> Iterator[Any]:
        tracer.here, tracer.elsewhere = None, "checkpoint"  # the recovery ends with the first task
        return first_task(*arguments, **named)

    StageTask.run = recovered  # type: ignore[method-assign]
    tracer.start()
    run(directory, 4)
    tracer.stop()

    root = str(directory / "checkpoints")
    job = JobDirectory(file_system_for(root), root, JobID.from_name("structure"))
    server = StateServer()
    tracer.elsewhere = "query"
    tracer.start()
    server.start()
    try:
        server.serve_job(job, FileRegister(job.fs, job.register_dir))
        address = server.get_server_address()
        client = QueryableStateClient(*address)
        get = tracer.wrap("query", client.get_kv_state)
        tracer.codes["query"].clear()
        get("structure", "counts", "kelp")
        client.close()
    finally:
        tracer.stop()
        server.shutdown()


def main() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    lines = [file.read_text(encoding="utf-8").count("\n") for file in files]
    print(
        f"{len(files)} modules, {sum(lines)} lines, {sum(200 <= n <= 700 for n in lines)} modules of 200 to 700 lines"
    )
    tracer = Tracer()
    with tempfile.TemporaryDirectory() as directory:
        trace(tracer, Path(directory))
    for path in PATHS:
        functions = tracer.functions(path)
        print(f"{path}: {len({file for file, _ in functions})} files, {len(functions)} functions")
        if "-v" in sys.argv:
            for file in sorted({file for file, _ in functions}):
                print("   ", file)


if __name__ == "__main__":
    main()
