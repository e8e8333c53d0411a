"""Compaction in the life of a job: crashes, rescaling, deposed leaders and readers at any moment of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.errors import HoldfastError, StorageError
from holdfast.kernel import fault
from holdfast.runtime import compaction as compaction_module
from holdfast.runtime import compaction as executor_module
from holdfast.runtime.compaction import CompactionExecutor, ProcessCompactionExecutor, ThreadCompactionExecutor
from holdfast.runtime.job.control import JobStatus
from holdfast.state import HashMapStateBackend
from holdfast.state import compaction as state_compaction
from holdfast.state.compaction import compact
from holdfast.state.compaction_plan import CompactionOutput, CompactionPlan, depth
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.state.run_file import open_run
from holdfast.storage.local import LocalFileSystem
from holdfast.testing.state_contract.state_access_contract import StateEpochs
from tests.stories import ledger, tidiness
from tests.stories.local import RESTARTING, master, run
from tests.stories.weather import Weather

ROWS, ACCOUNTS = 6, 9


class Held(CompactionExecutor):
    """Carries out plans when it is told, as a process would that is suspended meanwhile."""

    def __init__(self) -> None:
        self.plans: list = []

    def submit(self, plan):
        future: Future = Future()
        self.plans.append((plan, future))
        return future

    def carry_out(self, number=0):
        plan, future = self.plans[number]
        runs = compact(plan, LocalFileSystem())
        if not future.done():
            future.set_result(runs)
        return runs

    def close(self):
        return


class Eager(Held):
    """Has carried out each plan before anybody looks."""

    def submit(self, plan):
        future = super().submit(plan)
        self.carry_out(len(self.plans) - 1)
        return future


@pytest.fixture
def executor(monkeypatch):
    """Lets the jobs of a story use an executor of the story's own."""

    def use(made):
        monkeypatch.setattr(
            compaction_module, "create_compaction_executor", lambda name: made() if callable(made) else made
        )
        return made

    return use


def deepest(directory: Path) -> int:
    checkpoints = tidiness.retained(tidiness.job_directory(directory))
    return max(depth(op.runs) for checkpoint in checkpoints for op in checkpoint.metadata.operators)


def number_of_runs(directory: Path) -> int:
    newest = tidiness.retained(tidiness.job_directory(directory))[-1]
    return sum(len(op.runs) for op in newest.metadata.operators)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_merges_bring_a_job_back_to_the_runs_that_it_may_have(place, kind):
    payments = ledger.payments(80, ROWS, ACCOUNTS, seed=1)
    job = master(
        ledger.graph(place / "out"), place / "job", ledger.inputs(payments), {"state.compaction.executor": kind}
    )
    assert job.run() is JobStatus.SUSPENDED
    assert job.compaction.swapped and deepest(place / "job") < 40
    ledger.audit(place / "out", payments)
    tidiness.inspect(place / "job", outputs=(place / "out",))


@pytest.mark.parametrize("limit", [3, 8])
def test_a_job_with_fast_compaction_never_exceeds_the_limit_of_runs(place, executor, limit):
    executor(Eager)
    payments = ledger.payments(40, ROWS, ACCOUNTS, seed=1)
    options = {"state.compaction.max-runs": limit}
    job = master(ledger.graph(place / "out"), place / "job", ledger.inputs(payments), options)
    assert job.run() is JobStatus.SUSPENDED
    assert deepest(place / "job") <= limit + 1
    assert job.compaction.behind <= 1
    ledger.audit(place / "out", payments)


def test_no_epoch_and_no_stop_waits_for_merges_that_never_end(place, executor, caplog):
    held = executor(Held())
    payments = ledger.payments(60, ROWS, ACCOUNTS, seed=1)
    began = time.monotonic()
    job = master(ledger.graph(place / "out"), place / "job", ledger.inputs(payments))
    assert job.run() is JobStatus.SUSPENDED
    assert time.monotonic() - began < 50, "it was a minute an epoch"
    assert job.compaction.behind == job.compaction.deepest - 8 > 30
    assert not held.plans[0][0].is_urgent and held.plans[-1][0].is_urgent
    [first, *others] = [record.getMessage() for record in caplog.records if "is behind" in record.getMessage()]
    assert "has to be looked up in 33 runs (state.compaction.max-runs: 8)" in first and len(others) <= 1
    ledger.audit(place / "out", payments)

    executor(Eager)
    more = ledger.payments(80, ROWS, ACCOUNTS, seed=1)
    job = master(ledger.graph(place / "out"), place / "job", ledger.inputs(more))
    assert job.run() is JobStatus.SUSPENDED
    assert deepest(place / "job") <= 9, "merges that come take all runs of the time without"
    ledger.audit(place / "out", more)


def test_a_merge_in_a_thread_ends_with_the_job_and_writes_nothing(tmp_path, monkeypatch):
    epochs = StateEpochs(HashMapStateBackend(), str(tmp_path))
    with epochs.epoch() as task:
        task.state("a", ValueStateDescriptor("v", "bigint")).update(1)
    output = CompactionOutput("shared/merged.run", epochs.range_of(0))
    plan = CompactionPlan(epochs.directory, epochs.version.runs, (output,), True, 0, 1)
    is_merging, may_go_on = threading.Event(), threading.Event()
    open_run_before = state_compaction.open_run

    def slow(*arguments):
        is_merging.set()
        may_go_on.wait(30)
        return open_run_before(*arguments)

    monkeypatch.setattr(state_compaction, "open_run", slow)
    executor = ThreadCompactionExecutor()
    current, next_one = executor.submit(plan), executor.submit(plan)
    assert is_merging.wait(30)
    began = time.monotonic()
    executor.close()
    assert time.monotonic() - began < 10
    may_go_on.set()
    for future in (current, next_one):
        with pytest.raises(StorageError, match="The job has ended"):
            future.result(timeout=30)
    assert not (Path(epochs.directory) / "shared/merged.run").exists()


def test_without_compaction_each_epoch_adds_a_run(place):
    payments = ledger.payments(12, 40, ACCOUNTS, seed=1)
    run(ledger.graph(place / "out"), place / "job", ledger.inputs(payments), {"state.compaction.enabled": "false"})
    assert number_of_runs(place / "job") == 24


def test_every_retained_checkpoint_stays_whole_while_its_runs_are_replaced(place, executor):
    """A reader that opens any retained checkpoint finds every run of it, although the sweeper waits for nobody."""
    executor(Eager)
    files = LocalFileSystem()
    payments = ledger.payments(40, ROWS, ACCOUNTS, seed=4)

    def read_all(stage, partition):
        directory = tidiness.job_directory(place / "job")
        for checkpoint in tidiness.retained(directory):
            for operator in checkpoint.metadata.operators:
                for handle in operator.runs:
                    open_run(files, directory.path, handle).verify()

    run(ledger.graph(place / "out"), place / "job", ledger.inputs(payments), interceptor=read_all)
    ledger.audit(place / "out", payments)


def test_a_reader_of_a_version_can_read_after_its_runs_are_deleted(place, executor):
    executor(Eager)
    files = LocalFileSystem()
    payments = ledger.payments(40, ROWS, ACCOUNTS, seed=4)
    run(ledger.graph(place / "out"), place / "job", ledger.inputs(payments[:6]))
    directory = tidiness.job_directory(place / "job")
    [ledger_op] = [op for op in tidiness.retained(directory)[-1].metadata.operators if op.runs]
    opened = [open_run(files, directory.path, handle) for handle in ledger_op.runs]
    run(ledger.graph(place / "out"), place / "job", ledger.inputs(payments))
    assert not any(files.exists(directory.absolute(handle.path)) for handle in ledger_op.runs)
    for reader in opened:
        reader.verify()


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
def test_a_compaction_that_cannot_write_costs_nothing_but_its_work(place, executor, moment):
    """The disk fails under compactions alone; the job neither fails nor waits for what will not come."""

    class Unlucky(Eager):
        def submit(self, plan):
            fault.install(f"{moment}:run.write=raise")
            try:
                return super().submit(plan)
            except fault.FaultInjectedError as error:
                future: Future = Future()
                future.set_exception(error)
                return future
            finally:
                fault.clear()

    executor(Unlucky)
    payments = ledger.payments(30, ROWS, ACCOUNTS, seed=2)
    run(ledger.graph(place / "out"), place / "job", ledger.inputs(payments))
    assert number_of_runs(place / "job") > 30
    ledger.audit(place / "out", payments)
    tidiness.inspect(place / "job", outputs=(place / "out",))


def test_a_compactor_that_is_killed_again_and_again_is_started_again(place, executor):
    made = executor(ProcessCompactionExecutor())
    killed = []

    def strike(stage, partition):
        pid = made.pid
        if pid is not None and pid not in killed and len(killed) < 2:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    payments = ledger.payments(60, ROWS, ACCOUNTS, seed=3)
    run(ledger.graph(place / "out"), place / "job", ledger.inputs(payments), interceptor=strike)
    assert len(killed) == 2
    ledger.audit(place / "out", payments)
    tidiness.inspect(place / "job", outputs=(place / "out",))


def test_a_compaction_lost_with_its_process_is_logged():
    executor, pid = started()
    os.kill(pid, signal.SIGSTOP)
    futures = [executor.submit(_empty_plan()) for _ in range(2)]
    os.kill(pid, signal.SIGKILL)
    for future in futures:
        with pytest.raises(StorageError, match="process that compacts"):
            future.result(timeout=30)
    executor.close()


def test_an_answer_that_is_cut_off_is_lost_with_the_process(tmp_path, monkeypatch):
    module = 'import sys, os; os.write(int(sys.argv[1]), b\'{"id": 0, "ru\'); os.kill(os.getpid(), 9)'
    (tmp_path / "cut_off.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(executor_module, "_WORKER", "cut_off")
    monkeypatch.setattr(executor_module._idle, "take", lambda settings: None)  # an earlier test may have left one
    executor = ProcessCompactionExecutor()
    with pytest.raises(StorageError, match=r"has ended|cannot be reached"):
        executor.submit(_empty_plan()).result(timeout=30)
    executor.close()


def test_a_process_that_cannot_be_started_costs_nothing_but_the_work(place, executor, monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    executor(ProcessCompactionExecutor())
    monkeypatch.setattr(executor_module._idle, "take", lambda settings: None)
    monkeypatch.setattr(executor_module.subprocess, "Popen", refuse)
    payments = ledger.payments(14, ROWS, ACCOUNTS, seed=9)
    running = master(ledger.graph(place / "out"), place / "job", ledger.inputs(payments))
    assert running.run() is JobStatus.SUSPENDED
    assert running.history.failure_count == 0
    ledger.audit(place / "out", payments)


def test_a_plan_that_the_process_cannot_read_fails_alone():
    executor, pid = started()
    newer = SimpleNamespace(to_json=lambda: {"written by": "a newer version"})
    with pytest.raises(HoldfastError, match="KeyError"):
        executor.submit(replace(_empty_plan(), inputs=(newer,))).result(timeout=30)
    assert executor.submit(_empty_plan()).result(timeout=30) == []
    assert executor.pid == pid
    executor.close()


def test_output_printed_in_the_process_is_not_taken_for_an_answer(tmp_path, monkeypatch, capfd):
    (tmp_path / "sitecustomize.py").write_text("print('{}', 17, 'welcome', sep='\\n', end='')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    stop_the_idle_process()
    executor = ProcessCompactionExecutor()
    assert executor.submit(_empty_plan()).result(timeout=30) == []
    executor.close()
    printed = capfd.readouterr()
    assert "welcome" in printed.err
    assert "welcome" not in printed.out


def test_a_small_merge_does_not_wait_for_a_large_one(tmp_path, monkeypatch):
    epochs = StateEpochs(HashMapStateBackend(), str(tmp_path))
    with epochs.epoch() as task:
        task.state("a", ValueStateDescriptor("v", "bigint")).update(1)
    output = CompactionOutput("shared/merged.run", epochs.range_of(0))
    stop_the_idle_process()
    monkeypatch.setenv(fault.VARIABLE, "before:run.write:1=hang")
    executor = ProcessCompactionExecutor()
    large = executor.submit(CompactionPlan(epochs.directory, epochs.version.runs, (output,), True, 0, 1))
    assert executor.submit(_empty_plan()).result(timeout=30) == []
    assert not large.done()
    executor.close()


def test_an_idle_process_is_left_to_the_next_attempt_and_a_busy_one_is_ended():
    first, pid = started()
    first.submit(_empty_plan()).exception(timeout=30)
    first.close()

    second, same = started()
    assert same == pid
    os.kill(pid, signal.SIGSTOP)
    second.submit(_empty_plan())
    second.close()

    third, other = started()
    assert other != pid
    third.close()


def stop_the_idle_process():
    """What comes next starts one of its own."""
    executor, pid = started()
    os.kill(pid, signal.SIGSTOP)
    executor.submit(_empty_plan())
    executor.close()


def started():
    executor = ProcessCompactionExecutor()
    executor.prepare()
    assert executor.pid is not None
    return executor, executor.pid


def _empty_plan():
    return CompactionPlan("/nowhere", (), (), True, 0, 1)


def test_results_that_come_after_a_rescaling_fit_or_are_dropped(place, executor):
    """Compactions begin at one parallelism and end at another; every epoch of the rescaled job reads right."""
    held = executor(Held())
    payments = ledger.payments(60, ROWS, ACCOUNTS, seed=5)
    calls = []

    def strike(stage, partition):
        calls.append(stage)
        if len(calls) % 9 == 0:
            job.control.rescale({"": 1 + len(calls) % 4})
        if len(calls) % 7 == 0:
            for number, (_, future) in enumerate(held.plans):
                if not future.done():
                    held.carry_out(number)

    options = {**RESTARTING, "state.compaction.max-runs": 6}
    job = master(ledger.graph(place / "out"), place / "job", ledger.inputs(payments), options, interceptor=strike)
    assert job.run() is JobStatus.SUSPENDED
    assert len(held.plans) > 5
    ledger.audit(place / "out", payments)


def test_the_compaction_of_a_deposed_leader_does_no_harm_and_is_swept(place, executor):
    """It wakes up when another leader has gone on, writes its output, and nothing ever names it."""
    held = executor(Held())
    payments = ledger.payments(30, ROWS, ACCOUNTS, seed=6)
    run(ledger.graph(place / "out"), place / "job", ledger.inputs(payments[:8]))
    assert held.plans
    plan, _ = held.plans[0]
    executor(ThreadCompactionExecutor)

    def wake_up(stage, partition):
        if not woken:
            woken.append(held.carry_out(0))

    woken: list = []
    run(ledger.graph(place / "out"), place / "job", ledger.inputs(payments), interceptor=wake_up)
    assert woken
    ledger.audit(place / "out", payments)
    tidiness.inspect(place / "job", outputs=(place / "out",))
    assert not any(Path(plan.root, output.path).exists() for output in plan.outputs)


def test_bad_weather_while_everything_is_compacted(place, executor):
    executor(Eager)
    weather = Weather(11, rate=0.03)
    payments = ledger.payments(150, ROWS, ACCOUNTS, seed=7)
    graph = ledger.graph(place / "out", two_stages=True)
    options = {**RESTARTING, "state.compaction.max-runs": 4}
    assert run(graph, place / "job", ledger.inputs(payments), options, interceptor=weather) is JobStatus.SUSPENDED
    fault.clear()
    ledger.audit(place / "out", payments, two_stages=True)
    tidiness.inspect(place / "job", outputs=(place / "out",))
