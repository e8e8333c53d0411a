"""A sweep of a real directory leaves what the retained checkpoints name, and nothing else."""

import random

import pytest

from holdfast.checkpoint.checkpoint_machine import PendingCheckpoint
from holdfast.checkpoint.completed_checkpoint import read_by_path, read_retained
from holdfast.checkpoint.retention import Sweeper, SweepReport
from holdfast.errors import FencedError, PossibleInconsistentStateError
from holdfast.kernel import fault
from holdfast.kernel.clock import ManualClock
from holdfast.storage.job_directory import FileName
from holdfast.storage.local import temporary_name
from tests.unit.checkpoint.support import LocalJob, complete

GRACE = 10 * 60 * 1000
NO_GRACE = {"execution.checkpointing.cleaner.grace-period": 0}


@pytest.fixture
def job(tmp_path):
    return LocalJob(tmp_path, **NO_GRACE)


def sweeper(job, writer, clock=None):
    return Sweeper(job.directory, writer, job.configuration, clock)


def named(job):
    """Return the names of all files that the retained checkpoints name."""
    return {
        run.path.removeprefix("shared/")
        for checkpoint in read_retained(job.directory, job.register.read())
        for operator in checkpoint.metadata.operators
        for run in operator.runs
    }


def test_what_nobody_names_any_more_goes(job):
    writer, coordinator = job.lead()
    for epoch in range(1, 8):
        job.write_run(1, epoch, attempt=1)
        complete(coordinator, epoch, runs=[job.write_run(1, epoch)])
    sweep = sweeper(job, writer)
    report = sweep.sweep()
    assert job.files() == named(job)
    assert len(job.files()) == 3
    assert job.checkpoints() == [5, 6, 7]
    assert len(report.deleted) == 7 + 4 + 4
    assert sweep.sweep().deleted == ()


def test_what_is_in_memory_under_way_or_pinned_stays(job):
    writer, coordinator = job.lead()
    live, pinned = job.write_run(1, 1), job.write_run(1, 1)
    pin = complete(coordinator, 1, runs=[pinned])
    for epoch in range(2, 7):
        complete(coordinator, epoch)
    pending: PendingCheckpoint = coordinator.begin(7)
    sweeper(job, writer).sweep([live.path], [pending.checkpoint_id], [pin])
    assert {live.path, pinned.path} == {f"shared/{name}" for name in job.files()}
    assert job.checkpoints() == [1, 4, 5, 6]


def test_files_of_epochs_under_way_and_of_a_higher_token_stay(job):
    writer, coordinator = job.lead()
    complete(coordinator, 1)
    kept = [job.write_run(1, 2), job.write_run(2, 1), job.write_run(9, 1)]
    job.write_run(1, 1)
    job.write_run(0, 9)
    sweeper(job, writer).sweep()
    assert job.files() == {handle.path.removeprefix("shared/") for handle in kept}


def test_leftovers_of_deposed_leaders_go_and_foreign_files_stay(job):
    _, first = job.lead()
    complete(first, 1)
    orphan = first.begin(2, force=True)
    orphan.location.fs.write_atomic(orphan.location.metadata_path, b"never pointed to")
    dead = FileName.new(1, 5, 0, "op", 0)
    shared = job.directory.shared_dir
    job.directory.fs.write_atomic(f"{shared}/{temporary_name(dead.format())}", b"half")
    job.directory.fs.write_atomic(f"{shared}/notes.txt", b"mine")
    job.directory.fs.write_atomic(f"{job.directory.taskowned_dir}/{dead.format('.state')}", b"")
    writer, _ = job.lead()
    sweeper(job, writer).sweep()
    assert job.files() == {"notes.txt"}
    assert job.directory.fs.list_names(job.directory.taskowned_dir) == []
    assert job.checkpoints() == [1]


def test_a_sweep_need_not_be_waited_for_and_a_second_one_does_not_overtake_it(job):
    clock = ManualClock()
    writer, coordinator = job.lead(clock)
    sweep = sweeper(job, writer, clock)
    for epoch in range(1, 8):
        complete(coordinator, epoch, runs=[job.write_run(1, epoch)])
    clock.advance(GRACE)
    before = job.files()
    assert sweep.sweep(wait=False).deleted == ()
    complete(coordinator, 8, runs=[job.write_run(1, 8)])
    # The first sweep spreads its deletions over seconds, and this one leaves it to that.
    assert sweep.sweep(wait=False) == SweepReport()
    assert (before - named(job)) & job.files(), "some are still there"
    # One that is waited for ends the other and its own.
    sweep.sweep()
    assert job.files() == named(job)
    assert job.checkpoints() == [6, 7, 8]
    sweep.close()


def test_after_it_was_deposed_a_leader_deletes_nothing(job):
    writer, coordinator = job.lead()
    complete(coordinator, 1)
    job.write_run(1, 1)
    sweep = sweeper(job, writer)
    job.lead()
    before = job.files()
    with pytest.raises(FencedError):
        sweep.sweep()
    assert sweep.sweep().deleted == ()
    assert job.files() == before


def test_after_an_unknown_outcome_a_leader_deletes_nothing(job):
    writer, coordinator = job.lead()
    complete(coordinator, 1)
    job.write_run(1, 1)
    fault.install("after:pointer.write=raise")
    try:
        with pytest.raises(PossibleInconsistentStateError):
            complete(coordinator, 2)
    finally:
        fault.clear()
    before = job.files()
    assert sweeper(job, writer).sweep().deleted == ()
    assert job.files() == before


def test_while_a_retained_document_cannot_be_read_nothing_goes(job):
    writer, coordinator = job.lead()
    completed = complete(coordinator, 1)
    job.write_run(1, 1)
    path = completed.path + "/_metadata"
    whole = job.directory.fs.read(path)
    job.directory.fs.delete(path)
    assert sweeper(job, writer).sweep().deleted == ()
    job.directory.fs.write_atomic(path, whole)
    assert len(sweeper(job, writer).sweep().deleted) == 1


def test_files_stay_for_the_grace_period(tmp_path):
    job, clock = LocalJob(tmp_path), ManualClock()
    writer, coordinator = job.lead(clock)
    complete(coordinator, 1)
    job.write_run(1, 1)
    sweep = sweeper(job, writer, clock)
    assert sweep.sweep().waiting == 1
    clock.advance(10 * 60 * 1000 - 1)
    assert sweep.sweep().deleted == ()
    clock.advance(1)
    assert len(sweep.sweep().deleted) == 1


@pytest.mark.parametrize("away", [GRACE, GRACE // 3])
def test_what_earlier_leaders_left_waits_only_for_the_rest_of_its_grace_period(tmp_path, away):
    # A job that is run for some minutes every hour would otherwise never delete anything.
    job, clock = LocalJob(tmp_path), ManualClock(1_700_000_000_000)
    _, before = job.lead(clock)
    needless, needed = job.write_run(1, 1), job.write_run(1, 1)
    complete(before, 1, runs=[needed], completed_at=clock.now_ms())
    clock.advance(away)
    writer, coordinator = job.lead(clock)
    sweep = sweeper(job, writer, clock)
    for epoch in range(2, 9):
        complete(coordinator, epoch, completed_at=clock.now_ms())
    deleted = list(sweep.sweep().deleted)
    assert bool(deleted) == (away == GRACE)
    clock.advance(GRACE - away)
    deleted += sweep.sweep().deleted
    assert [path.rpartition("/")[2] for path in deleted] == [needless.path.rpartition("/")[2]]
    # What this leader took over was needed until it had checkpoints of its own.
    clock.advance(away - 1)
    assert needed.path.rpartition("/")[2] in job.files()
    clock.advance(1)
    sweep.sweep()
    assert job.files() == set()


def test_sinks_are_told_what_of_theirs_may_go(job):
    writer, coordinator = job.lead()
    staged = FileName.new(1, 1, 0, "out", 0)
    complete(
        coordinator, 1, source_positions={"committables": [{"path": f"/out/_staging/{staged.format('.parquet')}"}]}
    )
    answers = {}

    def ask(is_dead):
        answers["named"] = is_dead(staged)
        answers["failed attempt"] = is_dead(FileName.new(1, 1, 0, "out", 0))
        answers["under way"] = is_dead(FileName.new(1, 2, 0, "out", 0))
        answers["another leader's"] = is_dead(FileName.new(2, 1, 0, "out", 0))

    sweeper(job, writer).sweep(is_dead_elsewhere=ask)
    assert answers == {"named": False, "failed attempt": True, "under way": False, "another leader's": False}


@pytest.mark.parametrize("spec", ["before:subsume.delete:3=raise", "after:subsume.delete:3=raise"])
def test_a_sweep_that_breaks_off_is_finished_by_the_next(job, spec):
    writer, coordinator = job.lead()
    for epoch in range(1, 8):
        complete(coordinator, epoch, runs=[job.write_run(1, epoch)])
    job.configuration.set("execution.checkpointing.cleaner.parallel-mode", False)
    fault.install(spec)
    try:
        with pytest.raises(fault.FaultInjectedError):
            sweeper(job, writer).sweep()
    finally:
        fault.clear()
    assert named(job) <= job.files()
    writer, _ = job.lead()
    sweeper(job, writer).sweep()
    assert job.files() == named(job)
    assert job.checkpoints() == [5, 6, 7]


def test_a_file_that_cannot_be_deleted_stops_no_other(job):
    writer, coordinator = job.lead()
    complete(coordinator, 1)
    first, second = job.write_run(1, 1), job.write_run(1, 1)
    fault.install("before:subsume.delete:1=enospc")
    try:
        assert len(sweeper(job, writer).sweep().deleted) == 1
    finally:
        fault.clear()
    assert len(job.files()) == 1
    assert first.path != second.path


def test_many_epochs_with_leaders_that_die_leave_only_what_is_retained(job):
    rng = random.Random(3)
    epoch = 0
    while epoch < 300:
        writer, coordinator = job.lead()
        sweep = sweeper(job, writer)
        version = [
            run
            for checkpoint in read_retained(job.directory, writer.state)[-1:]
            for run in checkpoint.metadata.operators[0].runs
        ]
        for _ in range(rng.randrange(1, 12)):
            epoch += 1
            for attempt in range(rng.randrange(3)):
                job.write_run(writer.token, epoch, attempt)
            run = job.write_run(writer.token, epoch, 9)
            if rng.random() < 0.1:
                pending = coordinator.begin(epoch)
                pending.location.fs.write_atomic(pending.location.metadata_path, b"died before the pointer")
                break
            version = ([] if rng.random() < 0.3 else version) + [run]
            complete(coordinator, epoch, runs=version)
            if rng.random() < 0.3:
                sweep.sweep([handle.path for handle in version])
            for handle in version:
                assert handle.path.removeprefix("shared/") in job.files()
    writer, coordinator = job.lead()
    complete(coordinator, epoch + 1, runs=version)
    sweeper(job, writer).sweep()
    assert job.files() == named(job)
    assert job.checkpoints() == [pointer.checkpoint_id for pointer in job.register.read().checkpoints]
    assert read_by_path(job.directory.absolute(job.register.read().newest.path)).metadata.epoch == epoch + 1
