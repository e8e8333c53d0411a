"""Who may write to a directory of output, and to nothing else of the job: files of the job stay as they are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.datastream import ParquetFileSink
from holdfast.errors import HoldfastError
from tests.stories.functions import Numbering
from tests.stories.local import Program, master

EPOCHS = 3


def go(root: Path, epochs: int) -> Path:
    """Run the job until it has had so many epochs of one row; returns its directory."""
    program = Program()
    keys = program.source("in", "key string").key_by("key")
    counts = keys.process(Numbering(lambda row, number: (number,)), "n bigint").uid("count")
    counts.sink_to(ParquetFileSink(root / "out")).uid("out")
    options = {"execution.checkpointing.num-retained": "100"}
    job = master(program, root / "jobs", [{"in": [("k",)]} for _ in range(epochs)], options, parallelism=1)
    job.run()
    return Path(job.job.directory.path)


def files(job: Path) -> dict[Path, bytes]:
    """What the job needs: checkpoints, their state, and the register."""
    kept = [path for name in ("chk-*", "shared", "register") for path in job.glob(f"{name}/*")]
    return {path: path.read_bytes() for path in kept if path.is_file()}


def staging(out: Path) -> Path:
    [found] = [path for path in (out / ".holdfast").iterdir() if path.is_dir()]
    return found


def linked(place: Callable[[Path], Path], target: str) -> Callable[[Path, Path], None]:
    """In place of something there is a link to something of the job."""

    def change(out: Path, job: Path) -> None:
        what = place(out)
        shutil.move(what, out.with_name("moved"))
        what.symlink_to(job / target)

    return change


def marked(name: str, content: bytes | None) -> Callable[[Path, Path], None]:
    """The ledger says something else."""

    def change(out: Path, job: Path) -> None:
        mark = staging(out) / "ledger" / name
        mark.unlink(missing_ok=True)
        mark.write_bytes(content) if content is not None else os.mkfifo(mark)

    return change


def staged_links(out: Path, job: Path) -> None:
    """What looks as if dead attempts had staged it are links to files of the job."""
    owner = staging(out).name.rpartition("-")[2]
    for number, file in enumerate(files(job)):
        (staging(out) / f"000001-000000001-0-{owner}-0-{number:012x}.staged").symlink_to(file)


def named_pipe(out: Path, job: Path) -> None:
    (out / ".holdfast" / "identity").unlink()
    os.mkfifo(out / ".holdfast" / "identity")


HOSTILE = {
    "the folder is the job's": linked(lambda out: out / ".holdfast", ""),
    "staged among runs": linked(staging, "shared"),
    "staged in a checkpoint": linked(staging, "chk-3"),
    "staged in the register": linked(staging, "register"),
    "the ledger is the register": linked(lambda out: staging(out) / "ledger", "register"),
    "the ledger is a checkpoint": linked(lambda out: staging(out) / "ledger", "chk-3"),
    "the output is a checkpoint": linked(lambda out: out, "chk-3"),
    "the identity is a document": linked(lambda out: out / ".holdfast" / "identity", "chk-3/_metadata"),
    "the identity never ends": named_pipe,
    "staged files of nobody": staged_links,
    "a mark without end": marked("000000003.begun", b"[" * 100_000),
    "a mark of the next epoch": marked("000000004.begun", b"x"),
    "a mark that never ends": marked("000000004.begun", None),
    "a mark of no epoch": marked(f"{10**18}.begun", b"x"),
    "nothing is left": lambda out, job: shutil.rmtree(out),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_writer_of_the_output_directory_cannot_change_a_file_of_the_job(tmp_path: Path, name: str) -> None:
    job = go(tmp_path, EPOCHS)
    before = files(job)
    HOSTILE[name](tmp_path / "out", job)
    with suppress(HoldfastError):  # it may be stopped, and named so; another start says the same
        go(tmp_path, EPOCHS + 20)
    after = files(job)
    assert {path: after.get(path) for path in before if path.parent.name != "register"} == {
        path: content for path, content in before.items() if path.parent.name != "register"
    }
    assert all(after.get(path, content) == content for path, content in before.items()), "older versions may go"
