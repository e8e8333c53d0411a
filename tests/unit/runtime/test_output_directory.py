"""Whether a file was committed is told by a ledger beside the output, wherever the job dies or the directory is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.datastream import ParquetFileSink
from holdfast.datastream.sinks.output_directory import CommitLedger, OutputDirectory
from holdfast.errors import ConfigurationError, FencedError, HoldfastError, JobExecutionError, RestoreError
from holdfast.kernel import fault
from holdfast.runtime.commit.commit_manager import CommitManager, CommittingJob
from holdfast.storage.local import LocalFileSystem, temporary_name
from holdfast.testing.epoch_runner import LocalEngine
from holdfast.testing.sink_contract import JOB, UID, SinkStage
from tests.stories import tidiness
from tests.stories.local import RESTARTING, Program, epochs, run

PATH = "execution.state-recovery.path"
WORDS = [[f"{letter}{epoch}" for letter in "abc"] for epoch in range(6)]


def go(place: Path, count: int, options: Any = None, *, out: str = "out", directory: str = "job", **more: Any) -> None:
    program = Program()
    words = program.source("in", "string").map(lambda word: word, "string").uid("same")
    words.sink_to(ParquetFileSink(place / out)).uid("files")
    run(program, place / directory, epochs("in", WORDS[:count]), options, **more)


def rows(out: Path) -> list[str]:
    return sorted(row["value"] for file in out.glob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist())


def words(first: int, last: int) -> list[str]:
    return sorted(word for epoch in WORDS[first:last] for word in epoch)


def dies(place: Path, spec: str, count: int, error: type[Exception] = HoldfastError, **more: Any) -> None:
    fault.install(spec)
    with pytest.raises(error):
        go(place, count, **more)
    fault.clear()


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    fault.clear()


def test_a_service_that_starts_before_its_mount_is_there_waits_and_loses_nothing(place: Path) -> None:
    """As it was found: the rows of epoch 4 were gone for good, with exit code 0."""
    go(place, 3)
    dies(place, "before:sink.commit:1=raise", 4)
    (place / "out").rename(place / "unmounted")
    for _ in range(2):
        with pytest.raises(JobExecutionError, match=r"out' is not the directory that the job writes into.*mounted"):
            go(place, 4)
    assert not (place / "out").exists(), "nothing is made where the mount will be"
    (place / "unmounted").rename(place / "out")
    go(place, 6)
    assert rows(place / "out") == words(0, 6)
    tidiness.inspect(place / "job", outputs=(place / "out",))


def test_a_directory_lost_between_staging_and_commit_fails_commits_until_it_is_back(place: Path) -> None:
    class Unmounted(LocalEngine):
        def execute(self, epoch: Any, epoch_input: Any) -> Any:
            result = super().execute(epoch, epoch_input)
            if epoch_input is not None and epoch_input.number == 3 and not (place / "been away").exists():
                (place / "out").rename(place / "been away")
            return result

    with pytest.raises(JobExecutionError, match="is not the directory"):
        go(place, 6, engine=Unmounted)
    is_back(place, "been away")
    go(place, 6)
    assert rows(place / "out") == words(0, 6)


@pytest.mark.parametrize(
    ("who", "step"),
    [
        (OutputDirectory, "require_identity"), (CommitLedger, "last_epoch"), (OutputDirectory, "missing"),
        (CommitLedger, "begin"), (OutputDirectory, "move"), (OutputDirectory, "check_moved"),
        (CommitLedger, "finish"),
    ],
)  # fmt: skip
def test_a_directory_lost_after_any_step_of_a_commit_has_all_rows_when_it_is_back(
    place: Path, monkeypatch: pytest.MonkeyPatch, who: type, step: str
) -> None:
    go(place, 2)
    does = getattr(who, step)

    def goes_away(*arguments: Any) -> Any:
        answer = does(*arguments)
        monkeypatch.undo()
        (place / "out").rename(place / "away")
        return answer

    monkeypatch.setattr(who, step, goes_away)
    with suppress(JobExecutionError):
        go(place, 3)
    is_back(place, "away")
    go(place, 6)
    assert rows(place / "out") == words(0, 6)


def is_back(place: Path, away: str) -> None:
    """A mount covers what was made where it was not."""
    shutil.rmtree(place / "out", ignore_errors=True)
    (place / away).rename(place / "out")


def test_an_empty_directory_in_its_place_is_not_it_either(place: Path) -> None:
    go(place, 2)
    (place / "out").rename(place / "away")
    (place / "out" / ".holdfast").mkdir(parents=True)
    with pytest.raises(JobExecutionError, match="found no file"):
        go(place, 4)
    (place / "out" / ".holdfast" / "identity").write_text("another\n")
    with pytest.raises(JobExecutionError, match="found 'another'"):
        go(place, 4)
    identity = (place / "away" / ".holdfast" / "identity").read_text()
    (place / "out" / ".holdfast" / "identity").write_text(identity)
    go(place, 4)
    assert rows(place / "out") == words(2, 4), "whoever says that it is the one may begin it anew"


def test_a_task_that_does_not_see_the_directory_stages_nothing(place: Path) -> None:
    class Away(LocalEngine):
        def execute(self, epoch: Any, epoch_input: Any) -> Any:
            if epoch_input is not None and epoch_input.number == 2:
                (place / "out").rename(place / "away")
            return super().execute(epoch, epoch_input)

    with pytest.raises(JobExecutionError, match="is not the directory"):
        go(place, 4, engine=Away)
    assert not (place / "out").exists()
    (place / "away").rename(place / "out")
    go(place, 4)
    assert rows(place / "out") == words(0, 4)


def test_a_missing_staged_file_without_an_intent_is_always_rejected_by_name(place: Path) -> None:
    dies(place, "before:sink.commit:2=raise", 2)
    (staged,) = [path for path in place.glob("out/.holdfast/*/*.staged") if "-000000002-" in path.name][:1]
    content = staged.read_bytes()
    staged.unlink()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=staged.name):
            go(place, 3, RESTARTING)
    assert rows(place / "out") == words(0, 1), "not a part of the epoch either"
    staged.write_bytes(content)
    go(place, 3)
    assert rows(place / "out") == words(0, 3)


STEPS = ["create_exclusive:begun", "move_all", "link:done"]


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("moment", ["before", "after", "lost"])
@pytest.mark.parametrize("step", [*STEPS, "half of move_all"])
def test_it_dies_between_any_two_steps_of_a_commit(
    place: Path, step: str, moment: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a consumer takes what it sees meanwhile."""
    go(place, 2)
    name, _, suffix = step.removeprefix("half of ").partition(":")
    real = getattr(LocalFileSystem, name)

    def dying(fs: LocalFileSystem, *arguments: Any) -> Any:
        targets = [str(argument) for argument in arguments if isinstance(argument, str)]
        if suffix and not any(target.endswith(f"/000000003.{suffix}") for target in targets):
            return real(fs, *arguments)
        if not suffix and not any("part-000000003" in target for _, target in arguments[0]):
            return real(fs, *arguments)
        if step.startswith("half"):
            Path(arguments[0][0][0]).rename(arguments[0][0][1])
        elif moment != "before":
            real(fs, *arguments)
        raise OSError("the process dies")

    monkeypatch.setattr(LocalFileSystem, name, dying)
    with pytest.raises((HoldfastError, OSError)):
        go(place, 4)
    monkeypatch.undo()
    seen = rows(place / "out")
    if taken:
        for file in place.glob("out/*.parquet"):
            file.unlink()
    go(place, 6)
    assert sorted((seen if taken else []) + rows(place / "out")) == words(0, 6)
    tidiness.inspect(place / "job", outputs=(place / "out",))


def test_a_half_written_intent_of_a_killed_process_is_deleted_with_its_epoch(place: Path) -> None:
    """As the simulation found it: each kill at that moment left a file in the ledger for ever."""
    go(place, 2)
    (ledger,) = place.glob("out/.holdfast/*/ledger")
    (ledger / temporary_name("000000003.begun")).write_bytes(b"hal")
    go(place, 4)
    assert sorted(path.name for path in ledger.iterdir()) == ["000000004.begun", "000000004.done"]


def test_files_removed_by_consumers_are_not_committed_again(place: Path) -> None:
    taken: list[str] = []
    for count in range(1, 7):
        dies(place, f"after:sink.commit:{1 if count == 1 else 2}=raise", count)
        taken += rows(place / "out")
        for file in place.glob("out/*.parquet"):
            file.unlink()
    go(place, 6)
    assert sorted(taken + rows(place / "out")) == words(0, 6)


def test_several_jobs_in_one_path_of_one_name_do_not_touch_each_other(place: Path) -> None:
    """As it was found: the sweep of one deleted what the other had staged, because both had the same job id."""
    go(place, 2)
    dies(place, "before:sink.commit:2=raise", 3, directory="other")
    go(place, 6)
    go(place, 3, directory="other")
    assert rows(place / "out") == sorted(words(0, 6) + words(0, 3))
    for directory in ("job", "other"):
        assert tidiness.retained(tidiness.job_directory(place / directory))


def test_a_job_directory_that_was_put_back_from_a_copy_is_refused(place: Path) -> None:
    go(place, 2)
    shutil.copytree(place / "job", place / "backup")
    go(place, 4)
    shutil.rmtree(place / "job")
    shutil.copytree(place / "backup", place / "job")
    with pytest.raises(RestoreError, match=r"committed epoch 4 .* is of epoch 2: the job directory was restored.*-s"):
        go(place, 6, RESTARTING)
    newest = tidiness.retained(tidiness.job_directory(place / "job"))[-1].path
    go(place, 6, {PATH: newest})
    assert rows(place / "out") == sorted(words(0, 6) + words(2, 4)), "what came after it is emitted again, and said so"


def test_a_second_copy_of_a_job_directory_that_runs_beside_the_first_is_refused(place: Path) -> None:
    go(place, 2)
    shutil.copytree(place / "job", place / "copy")

    class Beside(LocalEngine):
        def execute(self, epoch: Any, epoch_input: Any) -> Any:
            if epoch_input is not None and epoch_input.number == 2:
                go(place, 3, directory="copy")
            return super().execute(epoch, epoch_input)

    with pytest.raises(ConfigurationError, match="two copies of one job directory"):
        go(place, 4, RESTARTING, engine=Beside)
    assert rows(place / "out") == words(0, 3)


@pytest.mark.parametrize("leads", [True, False])
def test_a_first_commit_that_finds_its_epoch_is_of_a_copy_only_if_its_process_still_leads(
    place: Path, leads: bool
) -> None:
    stage = SinkStage(ParquetFileSink(place / "out"), place, incarnation="abcdef123456")
    stage.prepare()
    mine, new = (stage.write(1, [("kelp", 1)], attempt=attempt) for attempt in (1, 2))
    stage.commit(new)

    def require_lead() -> None:
        if not leads:
            raise FencedError("another process leads")

    job = CommittingJob(JOB, str(place), incarnations=["abcdef123456"], require_lead=require_lead)
    committing = CommitManager({UID: stage.sink}, job)
    error, message = (ConfigurationError, "two copies of one job") if leads else (FencedError, "another process leads")
    with pytest.raises(error, match=message):
        committing.commit(2, {UID: mine}, is_recovered=False)
    committing.close()
    [file] = (place / "out").glob("*.parquet")
    assert pq.ParquetFile(file).read().to_pylist() == [{"word": "kelp", "n": 1}]


def test_a_job_that_is_started_from_a_checkpoint_commits_it_where_it_was_staged(place: Path) -> None:
    dies(place, "before:sink.commit:2=raise", 2)
    newest = tidiness.retained(tidiness.job_directory(place / "job"))[-1].path
    for directory in ("blue", "green"):
        go(place, 4, {PATH: newest}, directory=directory, out=directory, name=directory)
        assert rows(place / "out") == words(0, 2)
        assert rows(place / directory) == words(2, 4)


def test_a_job_that_begins_anew_beside_its_own_output_logs_it(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its checkpoints are on a disk that is not mounted yet, for instance; nothing there can tell."""
    told = "out' has output that a sink 'files' of this or another job has committed"
    go(place, 2)
    go(place, 3)
    go(place, 3, {"execution.state-recovery.fresh": True})
    assert told not in caplog.text
    (place / "job").rename(place / "unmounted")
    (place / "job").mkdir()
    go(place, 1)
    assert caplog.text.count(told) == 1
    go(place, 1)
    go(place, 1, out="another")
    assert caplog.text.count(told) == 1
