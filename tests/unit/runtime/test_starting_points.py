"""Where a job starts: its newest checkpoint, a given one, or nothing; and what does not fit is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import (
    ConfigurationError,
    RestoreError,
    StateMigrationError,
)
from holdfast.kernel import fault
from holdfast.runtime.job.control import JobStatus, SnapshotRequest
from holdfast.state_processor import SavepointWriter
from tests.stories import journal, tidiness
from tests.stories.functions import Numbering
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, epochs, master, run

PAIR = "key string, n bigint"
PATH = "execution.state-recovery.path"
FRESH = "execution.state-recovery.fresh"
IGNORE = "execution.state-recovery.ignore-unclaimed-state"
KEYS = ("a", "b", "ü", "")
BATCHES = [[(key, epoch) for key in KEYS] for epoch in range(8)]


def program(out: Path, *, uid: str = "count", **settings: Any) -> Program:
    """Numbers the pairs of each key."""
    program = Program()
    stream = program.source("in", PAIR).key_by(settings.pop("key", "key"), settings.pop("key_type", None))
    counted = stream.process(Numbering(lambda pair, number: (*pair, number)), f"{PAIR}, seq bigint").uid(uid)
    if "parallelism" in settings:
        counted.set_parallelism(settings.pop("parallelism"))
    if "max_parallelism" in settings:
        counted.set_max_parallelism(settings.pop("max_parallelism"))
    counted.sink_to(Journal(out)).uid("out")
    return program


def first_run(place: Path, count: int = 4, **settings: Any) -> None:
    run(program(place / "out", **settings), place / "job", epochs("in", BATCHES[:count]))


def numbered(batches: Sequence[Sequence[tuple[str, int]]], first: int = 0) -> list[tuple[str, int, int]]:
    return sorted((key, n, first + epoch + 1) for epoch, batch in enumerate(batches) for key, n in batch)


def rows(out: Path) -> list[tuple[Any, ...]]:
    return journal.as_tuples(journal.read(out))


def checkpoint_of(place: Path, epoch: int) -> str:
    found = [c for c in tidiness.retained(tidiness.job_directory(place / "job")) if c.metadata.epoch == epoch]
    return found[0].path


# Again.


def test_run_again_it_goes_on_where_it_was(place: Path) -> None:
    first_run(place)
    run(program(place / "out"), place / "job", epochs("in", BATCHES))
    assert rows(place / "out") == numbered(BATCHES)


def test_a_finished_job_runs_again_only_on_request(place: Path) -> None:
    inputs = epochs("in", BATCHES[:2])
    assert run(program(place / "out"), place / "job", inputs, is_bounded=True) is JobStatus.FINISHED
    token = tidiness.register_of(tidiness.job_directory(place / "job")).token
    assert run(program(place / "out"), place / "job", epochs("in", BATCHES), is_bounded=True) is JobStatus.FINISHED
    assert rows(place / "out") == numbered(BATCHES[:2])
    assert tidiness.retained(tidiness.job_directory(place / "job"))[-1].metadata.token <= token
    status = run(program(place / "again"), place / "job", inputs, {FRESH: "true"}, is_bounded=True)
    assert status is JobStatus.FINISHED
    assert rows(place / "again") == numbered(BATCHES[:2])


def test_a_cancelled_job_keeps_its_checkpoints_and_goes_on_when_it_is_run_again(place: Path) -> None:
    job = master(program(place / "out"), place / "job", epochs("in", BATCHES))
    job.job.engine._interceptor = lambda stage, partition: job.control.cancel()  # type: ignore[attr-defined]
    assert job.run() is JobStatus.CANCELED
    directory = tidiness.job_directory(place / "job")
    assert tidiness.register_of(directory).terminal == "CANCELED"
    assert len(tidiness.retained(directory)) == 1
    assert run(program(place / "out"), place / "job", epochs("in", BATCHES)) is JobStatus.SUSPENDED
    assert tidiness.register_of(directory).terminal is None
    assert rows(place / "out") == numbered(BATCHES)


def test_a_stopped_job_ends_suspended_after_the_running_epoch(place: Path) -> None:
    job = master(program(place / "out"), place / "job", epochs("in", BATCHES))
    job.job.engine._interceptor = lambda stage, partition: job.control.stop()  # type: ignore[attr-defined]
    assert job.run() is JobStatus.SUSPENDED
    assert rows(place / "out") == numbered(BATCHES[:1])


# From a given one.


@pytest.mark.parametrize("form", ["directory", "slash", "document", "uri"])
def test_a_start_from_a_given_checkpoint_repeats_the_later_epochs(place: Path, form: str) -> None:
    first_run(place)
    path = checkpoint_of(place, epoch=2)
    forms = {"directory": path, "slash": path + "/", "document": f"{path}/_metadata", "uri": f"file://{path}"}
    run(program(place / "again"), place / "job", epochs("in", BATCHES), {PATH: forms[form]})
    expected = [(key, n, seq) for key, n, seq in numbered(BATCHES) if seq > 1]
    # The sink commits what the checkpoint names once more, so epoch 2 is there, as it was then.
    assert [row for row in rows(place / "again") if row[2] > 2] == [row for row in expected if row[2] > 2]
    epochs_found = sorted({int(page[:6]) for page in journal.pages(place / "again")})
    assert min(epoch for epoch in epochs_found if epoch > 4) == 5, "numbers of completed epochs are not used again"
    run(program(place / "again"), place / "job", epochs("in", [*BATCHES, BATCHES[0]]))
    assert max(row[2] for row in rows(place / "again")) == len(BATCHES) + 1, "the next run goes on from there"


def test_a_restart_before_the_first_checkpoint_starts_from_the_given_one_again(place: Path) -> None:
    first_run(place)
    options = {**RESTARTING, PATH: checkpoint_of(place, epoch=2)}
    fault.install("before:metadata.write:1=raise")
    run(program(place / "again"), place / "job", epochs("in", BATCHES), options)
    assert [row for row in rows(place / "again") if row[2] > 2] == [r for r in numbered(BATCHES) if r[2] > 2]


def test_a_restart_after_it_goes_on_from_the_newest_one(place: Path) -> None:
    first_run(place)
    options = {**RESTARTING, PATH: checkpoint_of(place, epoch=2)}
    fault.install("before:metadata.write:3=raise")
    run(program(place / "again"), place / "job", epochs("in", BATCHES), options)
    assert [row for row in rows(place / "again") if row[2] > 2] == [r for r in numbered(BATCHES) if r[2] > 2]


def test_another_job_starts_from_it_and_depends_on_it_no_more(place: Path) -> None:
    first_run(place)
    path = checkpoint_of(place, epoch=4)
    other = {"name": "other", "parallelism": 3}
    run(program(place / "other"), place / "elsewhere", epochs("in", BATCHES[:6]), {PATH: path}, **other)
    (place / "job").rename(place / "moved away")
    run(program(place / "other"), place / "elsewhere", epochs("in", BATCHES), **other)
    assert [row for row in rows(place / "other") if row[2] > 4] == [r for r in numbered(BATCHES) if r[2] > 4]
    tidiness.inspect(place / "elsewhere", "other")


def test_started_from_a_savepoint_that_was_moved(place: Path) -> None:
    job = master(program(place / "out"), place / "job", epochs("in", BATCHES[:4]))
    asked: list[Any] = []

    def ask(stage: int, partition: int) -> None:
        if not asked:
            asked.append(job.control.request(SnapshotRequest(is_savepoint=True, directory=str(place / "savepoints"))))

    job.job.engine._interceptor = ask  # type: ignore[attr-defined]
    job.run()
    savepoint = Path(asked[0].result(0).removeprefix("file://"))
    moved = savepoint.rename(place / "moved savepoint")
    run(program(place / "again"), place / "new", epochs("in", BATCHES), {PATH: str(moved)}, name="new")
    assert rows(place / "again") == [row for row in numbered(BATCHES) if row[2] > 1]


def test_a_path_without_a_checkpoint_is_refused_and_nothing_changes(place: Path) -> None:
    first_run(place)
    options = {PATH: str(place / "nowhere"), "restart-strategy.type": "fixed-delay"}  # which would try it again
    with pytest.raises(RestoreError, match=r"No checkpoint or savepoint at .*nowhere"):
        run(program(place / "out"), place / "job", epochs("in", BATCHES), options)
    assert rows(place / "out") == numbered(BATCHES[:4])
    run(program(place / "out"), place / "job", epochs("in", BATCHES))
    assert rows(place / "out") == numbered(BATCHES)


def test_fresh_starts_without_state_and_the_next_run_goes_on_from_there(place: Path) -> None:
    first_run(place)
    options = {**RESTARTING, FRESH: "true"}
    fault.install("before:metadata.write:1=raise")  # a restart does not fall back to the old state either
    run(program(place / "fresh"), place / "job", epochs("in", BATCHES[:5]), options)
    assert rows(place / "fresh") == numbered(BATCHES[:5])
    assert min(int(page[:6]) for page in journal.pages(place / "fresh")) == 5, "epochs are numbered on"
    fault.clear()
    run(program(place / "fresh"), place / "job", epochs("in", BATCHES))
    assert rows(place / "fresh") == numbered(BATCHES)
    tidiness.inspect(place / "job")


# What does not fit.


def refused(place: Path, error: type[Exception], changed: Program, options: dict[str, Any] | None = None) -> Exception:
    """The job refuses, and is as it was."""
    directory = tidiness.job_directory(place / "job")
    before = [c.pointer for c in tidiness.retained(directory)]
    with pytest.raises(error) as caught:
        run(changed, place / "job", epochs("in", BATCHES), {**RESTARTING, **(options or {})})
    assert [c.pointer for c in tidiness.retained(directory)] == before
    run(program(place / "out"), place / "job", epochs("in", BATCHES))
    assert rows(place / "out") == numbered(BATCHES)
    return caught.value


def test_a_renamed_uid_is_refused_and_named(place: Path) -> None:
    first_run(place)
    error = refused(place, RestoreError, program(place / "out", uid="renamed"))
    assert isinstance(error, RestoreError)
    assert (error.missing_uids, error.new_uids) == (("count",), ("renamed",))
    assert "count" in str(error) and "renamed" in str(error) and "-n" in str(error)
    assert ".change_operator_identifier('count', 'renamed').write(new_path), and start from it with -s" in str(error)
    snapshot = tidiness.retained(tidiness.job_directory(place / "job"))[-1].path
    writer = SavepointWriter.from_existing_savepoint(snapshot).change_operator_identifier("count", "renamed")
    options = {"execution.state-recovery.path": writer.write(str(place / "changed"))}
    run(program(place / "new", uid="renamed"), place / "other", epochs("in", BATCHES), {**RESTARTING, **options})
    assert rows(place / "new")[0][1] > 1, "the counts go on"


def test_state_without_an_operator_is_dropped_on_request(place: Path) -> None:
    first_run(place)
    run(program(place / "new", uid="renamed"), place / "job", epochs("in", BATCHES), {IGNORE: "true"})
    assert [row for row in rows(place / "new") if row[1] >= 4] == numbered(BATCHES[4:])
    tidiness.inspect(place / "job")


@pytest.mark.parametrize(
    "settings",
    [
        {"key": "n"},
        {"key": ["key", "n"]},
        {"key": lambda pair: pair.key},
        {"key": lambda pair: pair.n, "key_type": "bigint"},
    ],
    ids=["another type", "composite", "untyped selector", "typed selector"],
)
def test_another_key_type_is_refused(place: Path, settings: dict[str, Any]) -> None:
    first_run(place)
    error = refused(place, StateMigrationError, program(place / "out", **settings))
    assert "'count'" in str(error)


def test_a_selector_of_the_same_key_type_takes_the_state_over(place: Path) -> None:
    first_run(place)
    settings: dict[str, Any] = {"key": lambda pair: pair.key, "key_type": "string"}
    run(program(place / "out", **settings), place / "job", epochs("in", BATCHES))
    assert rows(place / "out") == numbered(BATCHES)


def test_another_max_parallelism_is_refused(place: Path) -> None:
    first_run(place, max_parallelism=16)
    error = refused(place, ConfigurationError, program(place / "out", max_parallelism=32))
    assert "16" in str(error) and "32" in str(error)


def test_the_max_parallelism_of_the_state_overrides_the_default(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    first_run(place, max_parallelism=16)
    options = {"pipeline.max-parallelism": "64"}
    run(program(place / "out"), place / "job", epochs("in", BATCHES), options)
    assert "pipeline.max-parallelism is 64, but has no effect on state" in caplog.text
    assert "'count' keeps 16" in caplog.text
    assert rows(place / "out") == numbered(BATCHES)
    newest = tidiness.retained(tidiness.job_directory(place / "job"))[-1].metadata
    operator = newest.operator("count")
    assert operator is not None and operator.max_parallelism == 16


def test_a_parallelism_above_the_max_parallelism_of_the_state_is_refused(place: Path) -> None:
    first_run(place, max_parallelism=4)
    error = refused(place, ConfigurationError, program(place / "out", parallelism=5))
    assert "5" in str(error) and "4" in str(error)


# Rescaled.


def test_any_parallelism_at_any_start(place: Path) -> None:
    for number, parallelism in enumerate((1, 7, 2, 5, 3, 4, 6, 1), start=1):
        run(
            program(place / "out", parallelism=parallelism),
            place / "job",
            epochs("in", BATCHES[:number]),
            {"pipeline.max-parallelism": "7"},
            parallelism=2,
            source_tasks=1 + number % 3,
        )
    assert rows(place / "out") == numbered(BATCHES)


def test_rescaled_while_it_runs(place: Path) -> None:
    job = master(program(place / "out"), place / "job", epochs("in", BATCHES), {"pipeline.max-parallelism": "7"})
    wanted = [1, 7, 2, 5, 3, 4, 6, 9]
    futures = []

    def rescale(stage: int, partition: int) -> None:
        if (stage, partition) == (1, 0) and wanted:
            futures.append(job.control.rescale({"": wanted.pop(0)}))

    job.job.engine._interceptor = rescale  # type: ignore[attr-defined]
    job.run()
    assert rows(place / "out") == numbered(BATCHES)
    assert [future.exception(0) is None for future in futures[:7]] == [True] * 7
    with pytest.raises(Exception, match="max parallelism"):
        futures[7].result(0)
