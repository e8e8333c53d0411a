"""What a savepoint promises, whatever its format is called: it needs nothing else, any backend opens it, any job that
has grown starts from it; and it can be deleted without harm to anything beside it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.claim import dispose_savepoint
from holdfast.checkpoint.metadata import decode, encode
from holdfast.checkpoint.snapshot_type import SavepointFormatType
from holdfast.datastream.functions import CheckpointedFunction, KeyedProcessFunction
from holdfast.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptFileError,
    JobExecutionError,
    NotExistError,
    PossibleInconsistentStateError,
    StopWithSavepointStoppingError,
    StorageError,
)
from holdfast.kernel import fault
from holdfast.runtime.commit import checkpointing
from holdfast.runtime.job.control import JobStatus, SnapshotRequest
from holdfast.runtime.job.engine import EpochDriver, Outcome
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.storage.local import LocalFileSystem
from holdfast.testing.epoch_runner import LocalEngine
from tests.stories import journal, tidiness
from tests.stories.functions import Numbering
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, master, run

CANONICAL, NATIVE = SavepointFormatType.CANONICAL, SavepointFormatType.NATIVE
PATH = "execution.state-recovery.path"
WORDS = [["kelp", "rock", "sand"], ["kelp", "ü"], ["kelp", "rock"], ["sand", "ü", "kelp"], ["rock"]]
BACKENDS = ["hashmap", "columnar"]
IN_FILES = {"execution.checkpointing.data-inline-threshold": "0 b"}


class Everything(KeyedProcessFunction, CheckpointedFunction):
    """Has state of each kind, operator state in files, and a timer; what it emits tells all of it.

    Args:
        grown: Whether it is a later version of the program: its record has a field more.
    """

    def __init__(self, *, grown: bool = False) -> None:
        self._record = "n int, word string" if not grown else "n bigint, word string, seen boolean"

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.seen = store.get_list_state(ListStateDescriptor("seen", "string"))
        self.shared = store.get_broadcast_state(MapStateDescriptor("shared", "string", "bigint"))
        self.restored = sorted(self.seen.get())

    def snapshot_state(self, context: Any) -> None:
        self.shared.put("epochs", (self.shared.get("epochs") or 0) + 1)

    def open(self, runtime_context: Any) -> None:
        self.record = runtime_context.get_state(ValueStateDescriptor("record", self._record))
        self.letters = runtime_context.get_map_state(MapStateDescriptor("letters", "string", "bigint"))
        self.lengths = runtime_context.get_list_state(ListStateDescriptor("lengths", "int"))

    def process_element(self, word: str, ctx: Any) -> Any:
        record = self.record.value()
        number = 1 if record is None else record[0] + 1
        self.record.update((number, word, True)[: 2 + ("seen" in self._record)])
        self.letters.put(word[0], (self.letters.get(word[0]) or 0) + 1)
        self.lengths.add(len(word))
        self.seen.add(word)
        ctx.timer_service().register_processing_time_timer(10_000_000 + number)
        epochs_seen = self.shared.get("epochs") or 0
        yield word, number, sum(n for _, n in self.letters.items()), len(list(self.lengths.get())), epochs_seen


def program(out: Path, *, grown: bool = False, extra: bool = False, parallelism: int = 2) -> Program:
    program = Program()
    words = program.source("in", "string")
    told = words.key_by(lambda word: word, "string").process(
        Everything(grown=grown), "word string, n bigint, letters bigint, lengths bigint, epochs bigint"
    )
    told.uid("everything").set_parallelism(parallelism)
    if extra:
        told = told.key_by("word").process(Numbering(lambda row, _: row), told.get_type()).uid("extra")
    told.sink_to(Journal(out)).uid("out")
    return program


def savepoint_of(place: Path, kind: SavepointFormatType = CANONICAL, backend: str = "hashmap") -> Path:
    """The path of a savepoint taken after the first of some epochs; the job goes on to its third."""
    options = {"state.backend.type": backend, **IN_FILES}
    job = master(program(place / "out"), place / "job", epochs("in", WORDS[:3]), options)
    asked: list[Any] = []

    def ask(stage: int, partition: int) -> None:
        if not asked:
            wanted = SnapshotRequest(is_savepoint=True, directory=str(place / "savepoints"), format_type=kind)
            asked.append(job.control.request(wanted))

    job.job.engine._interceptor = ask  # type: ignore[attr-defined]
    job.run()
    return Path(asked[0].result(0))


def expected(batches: list[list[str]]) -> list[tuple[Any, ...]]:
    rows, count = [], dict[str, int]()
    for epoch, batch in enumerate(batches):
        for word in batch:
            count[word] = count.get(word, 0) + 1
            rows.append((word, count[word], count[word], count[word], epoch))
    return sorted(rows)


def since_the_savepoint(out: Path) -> list[tuple[Any, ...]]:
    return journal.as_tuples(journal.read(out))


@pytest.mark.parametrize("kind", [CANONICAL, NATIVE])
@pytest.mark.parametrize(("first", "then"), [BACKENDS, BACKENDS[::-1]])
def test_a_moved_savepoint_restores_with_the_other_backend_another_parallelism_and_a_larger_program(
    place: Path, kind: SavepointFormatType, first: str, then: str
) -> None:
    """All that the contract promises of a canonical savepoint, at once."""
    savepoint = savepoint_of(place, kind, first)
    document = decode((savepoint / "_metadata").read_bytes(), "")
    assert document.properties["format"] == kind.name
    moved = place / "elsewhere" / "renamed"
    shutil.copytree(savepoint, moved)  # on another disk there are no links to what it was made of
    shutil.rmtree(savepoint.parent)
    shutil.rmtree(place / "job")

    options = {PATH: str(moved), "state.backend.type": then}
    again = program(place / "again", grown=True, extra=True, parallelism=3)
    run(again, place / "new", epochs("in", WORDS), options, name="new")

    wanted = [row for row in expected(WORDS) if row[4] >= 1]
    assert since_the_savepoint(place / "again") == wanted
    shutil.rmtree(moved)
    assert run(again, place / "new", epochs("in", WORDS), {"state.backend.type": first}, name="new"), "it has its own"


def test_one_that_could_not_be_written_leaves_nothing(place: Path) -> None:
    fault.install("before:metadata.write:2=raise")
    with pytest.raises(Exception, match="metadata"):
        savepoint_of(place)
    assert [path for path in (place / "savepoints").rglob("*") if path.is_file()] == []
    assert since_the_savepoint(place / "out") == expected(WORDS[:3]), "the job went on"


def test_deleted_it_takes_nothing_else_along(place: Path) -> None:
    savepoint = savepoint_of(place)
    assert {path.name for path in savepoint.iterdir()} == {"_metadata", "shared", "taskowned"}
    (savepoint.parent / "mine.txt").write_text("not yours")

    assert dispose_savepoint(str(savepoint / "_metadata")) == str(savepoint)

    assert [path.name for path in savepoint.parent.iterdir()] == ["mine.txt"]
    tidiness.inspect(place / "job")
    assert run(program(place / "out"), place / "job", epochs("in", WORDS)) is JobStatus.SUSPENDED
    assert since_the_savepoint(place / "out") == expected(WORDS)
    with pytest.raises(NotExistError, match="No checkpoint or savepoint"):
        dispose_savepoint(str(savepoint))


DISPOSE = """
import os, signal, sys
from holdfast.cli import main
from holdfast.storage.local import LocalFileSystem

delete, moment = LocalFileSystem.delete_in, sys.argv.pop()

def dies(fs, directory, name):
    if moment == "never" or name != "_metadata":
        return delete(fs, directory, name)
    if moment == "after":
        delete(fs, directory, name)
    os.kill(os.getpid(), signal.SIGKILL)

LocalFileSystem.delete_in = dies
sys.argv.insert(1, "savepoint")
sys.argv.insert(2, "--dispose")
main()
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_disposal_of_a_killed_process_can_be_repeated(place: Path, moment: str) -> None:
    savepoint = savepoint_of(place)
    (savepoint.parent / "mine.txt").write_text("not yours")
    dies = [sys.executable, "-c", DISPOSE, str(savepoint), moment]

    died = subprocess.run(dies, check=False)
    assert died.returncode == -signal.SIGKILL
    assert (savepoint / "_metadata").exists() == (moment == "before")
    assert any((savepoint / "shared").iterdir())

    subprocess.run([*dies[:-1], "never"], check=True)
    assert [path.name for path in savepoint.parent.iterdir()] == ["mine.txt"]
    tidiness.inspect(place / "job")


def test_one_that_is_still_being_written_is_not_taken_for_one_that_is_being_deleted(place: Path) -> None:
    savepoint = savepoint_of(place)
    (savepoint / "_metadata").unlink()
    before = sorted(savepoint.rglob("*"))
    with pytest.raises(NotExistError, match="_metadata"):
        dispose_savepoint(str(savepoint))
    assert sorted(savepoint.rglob("*")) == before


@pytest.mark.parametrize("name", ["_disposal", "_metadata"])
def test_a_disposal_with_a_lost_answer_can_be_repeated(place: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    savepoint = savepoint_of(place)
    create, delete = LocalFileSystem.create_exclusive, LocalFileSystem.delete_in

    def creates(self: LocalFileSystem, path: str, data: bytes) -> None:
        create(self, path, data)
        if path.endswith(name):
            raise PossibleInconsistentStateError(f"{path!r}: the answer was lost")

    def deletes(self: LocalFileSystem, directory: str, file: str) -> bool:
        was_there = delete(self, directory, file)
        if file == name:
            raise StorageError(f"{file!r}: the answer was lost")
        return was_there

    monkeypatch.setattr(LocalFileSystem, "create_exclusive", creates)
    monkeypatch.setattr(LocalFileSystem, "delete_in", deletes)
    with pytest.raises(StorageError, match="the answer was lost"):
        dispose_savepoint(str(savepoint))
    monkeypatch.undo()
    assert [path.name for path in savepoint.glob("_*")] == (["_disposal"] if name == "_metadata" else [])
    if name == "_metadata":
        dispose_savepoint(str(savepoint))
        assert not savepoint.exists()
    else:
        assert list(savepoint.iterdir()) == [], "an empty directory is all that is left"


def test_a_savepoint_on_a_full_disk_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(*arguments: Any) -> Any:
        raise StorageError("'shared/1': no space left on device")

    monkeypatch.setattr(checkpointing, "copy_files", is_full)
    with pytest.raises(CheckpointError, match="no space left on device"):
        savepoint_of(place)


def test_on_a_full_disk_it_can_be_deleted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    savepoint = savepoint_of(place)

    def is_full(self: LocalFileSystem, path: str, data: bytes) -> None:
        raise StorageError(f"{path!r}: no space left on device")

    monkeypatch.setattr(LocalFileSystem, "create_exclusive", is_full)
    dispose_savepoint(str(savepoint))
    assert not savepoint.exists()


def test_foreign_files_in_a_savepoint_stay_and_links_are_not_followed(place: Path) -> None:
    savepoint, treasure = savepoint_of(place), place / "treasure"
    treasure.mkdir()
    (savepoint / "notes.txt").write_text("mine")
    (savepoint / "shared" / "notes.txt").write_text("mine")
    for path in (savepoint / "taskowned").iterdir():
        path.rename(treasure / path.name)
    kept = sorted(path.name for path in treasure.iterdir())
    (savepoint / "taskowned").rmdir()
    (savepoint / "taskowned").symlink_to(treasure)

    dispose_savepoint(str(savepoint))

    left = sorted(str(path.relative_to(savepoint)) for path in savepoint.rglob("*") if not path.is_dir())
    assert left == ["notes.txt", "shared/notes.txt"] or left == ["notes.txt", "shared/notes.txt", "taskowned"]
    assert sorted(path.name for path in treasure.iterdir()) == kept != []


def test_a_savepoint_cannot_delete_files_outside_its_directory(place: Path) -> None:
    savepoint = savepoint_of(place)
    document = decode((savepoint / "_metadata").read_bytes(), "")
    run_file = next(iter((place / "job").glob("*/shared/*.run")))
    everything = document.operator("everything")
    assert everything is not None
    outside = [str(run_file), os.path.relpath(run_file, savepoint)]
    stolen = replace(everything, runs=tuple(replace(everything.runs[0], path=path) for path in outside))
    (savepoint / "_metadata").write_bytes(encode(replace(document, operators=(stolen,))))

    dispose_savepoint(str(savepoint))

    assert run_file.exists()
    assert not savepoint.exists()


def test_a_directory_without_a_savepoint_is_rejected_and_stays(place: Path) -> None:
    savepoint = savepoint_of(place)
    checkpoint = tidiness.retained(tidiness.job_directory(place / "job"))[-1].path
    with pytest.raises(ConfigurationError, match="not a savepoint"):
        dispose_savepoint(checkpoint)
    with pytest.raises(NotExistError, match="_metadata"):
        dispose_savepoint(str(place))
    damaged = savepoint / "_metadata"
    damaged.write_bytes(damaged.read_bytes()[:-7])
    with pytest.raises(CorruptFileError):
        dispose_savepoint(str(savepoint))
    assert (savepoint / "shared").exists()
    tidiness.inspect(place / "job")


def test_one_file_that_cannot_be_deleted_keeps_none_of_the_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    savepoint = savepoint_of(place)
    files = sorted((savepoint / "shared").iterdir())
    delete = LocalFileSystem.delete_in

    def fails_for_two(self: LocalFileSystem, directory: str, name: str) -> bool:
        if Path(directory, name) in files[:2]:
            raise StorageError(f"{name!r} is on a disk that has gone away")
        return delete(self, directory, name)

    monkeypatch.setattr(LocalFileSystem, "delete_in", fails_for_two)
    with pytest.raises(StorageError, match=files[0].name) as failed:
        dispose_savepoint(str(savepoint))
    assert files[1].name in failed.value.__notes__[0]
    left = sorted(path for path in savepoint.rglob("*") if path.is_file())
    assert left == [savepoint / "_disposal", *files[:2]]
    monkeypatch.undo()
    dispose_savepoint(str(savepoint))
    assert not savepoint.exists()


@pytest.mark.parametrize("properties", [{}, {"type": "SNAPSHOT"}, {"type": "SAVEPOINT", "format": "AVRO"}, {"type": 7}])
def test_a_document_of_an_unknown_kind_is_damaged_and_no_internal_error(place: Path, properties: Any) -> None:
    savepoint = savepoint_of(place)
    document = decode((savepoint / "_metadata").read_bytes(), "")
    with pytest.raises(CorruptFileError, match="properties"):
        decode(encode(replace(document, properties=properties)), "_metadata")


def test_a_drain_removes_probe_files_of_killed_processes(place: Path) -> None:
    (place / "savepoints").mkdir()
    (place / "savepoints" / ".holdfast-probe-0123456789ab").write_bytes(b"")
    job, asked = stopped(place, drain=True)
    job.run()
    (savepoint,) = (place / "savepoints").iterdir()
    assert str(savepoint) == asked[0].result(0)


class GoneWhenStopped(LocalEngine):
    """An engine that breaks after its last epoch."""

    def drive(self, driver: EpochDriver) -> Outcome:
        super().drive(driver)
        raise StorageError("the engine broke while it stopped")


def stopped(
    place: Path, engine: type[LocalEngine] = LocalEngine, *, drain: bool = False
) -> tuple[JobMaster, list[Any]]:
    """A job that is asked in its first epoch to stop with a savepoint."""
    restarting = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 100}
    job = master(program(place / "out"), place / "job", epochs("in", WORDS), restarting, engine=engine)
    asked: list[Any] = []

    def ask(stage: int, partition: int) -> None:
        if not asked:
            wanted = SnapshotRequest(is_savepoint=True, directory=str(place / "savepoints"), stop=True, drain=drain)
            asked.append(job.control.request(wanted))

    job.job.engine._interceptor = ask  # type: ignore[attr-defined]
    return job, asked


def goes_on(place: Path, savepoint: str) -> None:
    """The savepoint and the job's own checkpoint hold the same."""
    run(program(place / "again"), place / "new", epochs("in", WORDS), {PATH: savepoint}, name="new")
    run(program(place / "out"), place / "job", epochs("in", WORDS))
    assert since_the_savepoint(place / "out") == expected(WORDS)
    assert since_the_savepoint(place / "again") == [row for row in expected(WORDS) if row[4] >= 1]


def test_a_stop_is_reported_when_the_job_has_stopped_and_both_restarts_have_the_same_result(place: Path) -> None:
    job, asked = stopped(place)
    assert job.run() is JobStatus.SUSPENDED
    goes_on(place, asked[0].result(0))


def test_a_job_that_fails_after_its_final_savepoint_names_the_savepoint(place: Path) -> None:
    job, asked = stopped(place, GoneWhenStopped)
    with pytest.raises(JobExecutionError, match="failed while it was being stopped"):
        job.run()
    error = asked[0].exception(0)
    assert isinstance(error, StopWithSavepointStoppingError)
    assert str(error).startswith(f"A savepoint has been created at: {error.savepoint_path}, but the corresponding job")
    goes_on(place, error.savepoint_path)


def test_a_request_beside_a_savepoint_that_ends_the_attempt_is_answered_by_the_next(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "1 ms"}
    job = master(program(place / "out"), place / "job", epochs("in", WORDS), again)
    asked: list[Any] = []

    def ask(stage: int, partition: int) -> None:
        if not asked:
            asked.extend(
                job.control.request(SnapshotRequest(is_savepoint=True, directory=str(place / name)))
                for name in ("first", "second")
            )

    def is_lost(*arguments: Any) -> Any:
        monkeypatch.undo()
        raise PossibleInconsistentStateError("the answer was lost")

    job.job.engine._interceptor = ask  # type: ignore[attr-defined]
    monkeypatch.setattr(checkpointing.EpochCheckpoints, "_savepoint", is_lost)
    assert job.run() is JobStatus.SUSPENDED
    with pytest.raises(PossibleInconsistentStateError):
        asked[0].result(0)
    assert Path(asked[1].result(0)).parent == place / "second"
