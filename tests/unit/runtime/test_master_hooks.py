"""Hooks on the job master's side, brought by functions and sinks: a service that must know where checkpoints are.

The service here is a directory. Its hook writes one file a checkpoint, and its state is how many it has written, so a
job that forgot it, or restored a wrong one, would write a file twice or leave one out.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.metadata import CheckpointMetadata, decode, encode
from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    CoGroupFunction,
    DataStream,
    KeyedStream,
    MasterTriggerRestoreHook,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RichMapFunction,
    WindowFunction,
    WithMasterCheckpointHook,
)
from holdfast.datastream.window import CountEvictor, TumblingProcessingTimeWindows
from holdfast.errors import ConfigurationError, CorruptFileError, JobExecutionError, RestoreError
from holdfast.kernel import fault
from holdfast.runtime.job.control import JobStatus, SnapshotRequest
from holdfast.storage import DocumentSerializer, StateSerializer
from tests.stories import journal, tidiness
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, epochs, master, run

PATH = "execution.state-recovery.path"
TOLERABLE = "execution.checkpointing.tolerable-failed-checkpoints"
ONE_IS_TOLERATED = {TOLERABLE: 1}
BATCHES = [["a"], ["b"], ["c"], ["d"]]


class Service(MasterTriggerRestoreHook[int]):
    """Counts checkpoints; everything that it is told is a line in its log."""

    def __init__(self, place: Path, name: str, trouble: str) -> None:
        self._place, self._name, self._trouble = place, name, trouble
        self._count = 0

    def get_identifier(self) -> str:
        return self._name

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, executor: Executor | None) -> Any:
        if self._trouble == "always" or (self._trouble == "second" and self._is_the_second_time()):
            raise OSError("the service is down")
        self._count += 1
        self._log(f"checkpoint {checkpoint_id}: {self._count}")
        if self._trouble == "late":
            answer: Future[int] = Future()
            answer.set_result(self._count)
            return answer
        return self._count

    def restore_checkpoint(self, checkpoint_id: int, state: int | None) -> None:
        self._count = state or 0
        self._log(f"restored {checkpoint_id}: {state}")

    def create_checkpoint_data_serializer(self) -> StateSerializer[int]:
        return DocumentSerializer("service", 1, lambda count: {"count": count}, lambda body: int(body["count"]))

    def reset(self) -> None:
        self._count = 0
        self._log("reset")

    def close(self) -> None:
        self._log("closed")

    def _is_the_second_time(self) -> bool:
        if self._count != 1 or "trouble" in log(self._place, self._name):
            return False
        self._log("trouble")
        return True

    def _log(self, line: str) -> None:
        with (self._place / self._name).open("a") as file:
            file.write(f"{line}\n")


class Told(RichMapFunction, WithMasterCheckpointHook[int]):
    def __init__(self, place: Path, name: str, trouble: str = "") -> None:
        self._hook = (place, name, trouble)

    def create_master_trigger_restore_hook(self) -> Service:
        return Service(*self._hook)

    def map(self, value: str) -> str:
        return value


class ToldJournal(Journal, WithMasterCheckpointHook[int]):
    def __init__(self, directory: Path, place: Path) -> None:
        super().__init__(directory)
        self._place = str(place)

    def create_master_trigger_restore_hook(self) -> Service:
        return Service(Path(self._place), "sink", "")


def program(place: Path, *functions: Any, sink: Journal | None = None) -> Program:
    program = Program()
    stream = program.source("in", "string")
    for number, function in enumerate(functions):
        stream = stream.map(function, "string").uid(f"step-{number}")
    stream.sink_to(sink or Journal(place / "out")).uid("out")
    return program


def log(place: Path, name: str = "service") -> list[str]:
    return (place / name).read_text().splitlines()


def newest(place: Path) -> CheckpointMetadata:
    return tidiness.retained(tidiness.job_directory(place / "job"))[-1].metadata


@pytest.mark.parametrize("trouble", ["", "late"])
def test_a_hook_is_triggered_for_each_checkpoint_and_restored_in_the_next_process(place: Path, trouble: str) -> None:
    told = program(place, Told(place, "service", trouble))
    run(told, place / "job", epochs("in", BATCHES[:2]))
    assert log(place) == ["reset", "checkpoint 1: 1", "checkpoint 2: 2", "closed"]
    run(program(place, Told(place, "service", trouble)), place / "job", epochs("in", BATCHES))
    restored, *told_again, closed = log(place)[4:]
    assert (restored, closed) == ("restored 2: 2", "closed")
    assert [line.split(": ")[1] for line in told_again] == ["3", "4"]


def test_a_function_and_a_sink_may_bring_one_each(place: Path) -> None:
    told = program(place, Told(place, "service"), sink=ToldJournal(place / "out", place))
    run(told, place / "job", epochs("in", BATCHES[:1]))
    assert set(newest(place).master_states) == {"service", "sink"}
    assert log(place, "sink") == log(place, "service") == ["reset", "checkpoint 1: 1", "closed"]


def test_a_restart_gives_it_the_state_of_the_checkpoint_that_is_restored(place: Path) -> None:
    fault.install("before:metadata.write:3=raise")  # the hook was told of checkpoint 3, which never completed
    run(program(place, Told(place, "service")), place / "job", epochs("in", BATCHES), RESTARTING)
    assert log(place)[:6] == ["reset", *(f"checkpoint {n}: {n}" for n in (1, 2, 3)), "closed", "restored 2: 2"]
    assert [line.split(": ")[1] for line in log(place)[6:-1]] == ["3", "4"], "no count is left out, none comes twice"
    assert journal.read(place / "out") == ["a", "b", "c", "d"]


def test_its_state_travels_in_a_savepoint_to_another_job(place: Path) -> None:
    job = master(program(place, Told(place, "service")), place / "job", epochs("in", BATCHES[:2]))
    asked: list[Any] = []

    def ask(stage: int, partition: int) -> None:
        if not asked:
            asked.append(job.control.request(SnapshotRequest(is_savepoint=True, directory=str(place / "savepoints"))))

    job.job.engine._interceptor = ask  # type: ignore[attr-defined]
    job.run()
    assert log(place)[1:3] == ["checkpoint 1: 1", "checkpoint 2: 2"], "the second one is the savepoint"
    other = program(place / "other", Told(place, "elsewhere"), Told(place, "service"))
    run(other, place / "new", epochs("in", BATCHES), {PATH: asked[0].result(0)}, name="new")
    assert "restored 2: 2" in log(place)
    assert log(place, "elsewhere")[0] == "restored 2: None", "it is new in this job"


def test_state_of_one_that_the_program_no_longer_has_is_refused_or_dropped(place: Path) -> None:
    run(program(place, Told(place, "service")), place / "job", epochs("in", BATCHES[:2]))
    without = program(place, lambda value: value)
    with pytest.raises(RestoreError, match=r"master hooks \['service'\].*-n"):
        run(without, place / "job", epochs("in", BATCHES))
    dropped = {"execution.state-recovery.ignore-unclaimed-state": "true"}
    run(program(place, lambda value: value), place / "job", epochs("in", BATCHES), dropped)
    assert newest(place).master_states == {}


def test_one_that_fails_once_costs_a_checkpoint_and_no_element(place: Path) -> None:
    told = program(place, Told(place, "service", "second"))
    assert run(told, place / "job", epochs("in", BATCHES), ONE_IS_TOLERATED) is JobStatus.SUSPENDED
    assert log(place) == ["reset", "checkpoint 1: 1", "trouble", "checkpoint 3: 2", "checkpoint 4: 3", "closed"]
    assert journal.read(place / "out") == ["a", "b", "c", "d"]


def test_one_that_always_fails_lets_nothing_be_committed_and_fails_the_job_at_its_end(place: Path) -> None:
    tolerant = {TOLERABLE: 100}
    with pytest.raises(
        JobExecutionError, match=r"last checkpoint of the job.*Master hook 'service': the service is down"
    ):
        run(program(place, Told(place, "service", "always")), place / "job", epochs("in", BATCHES), tolerant)
    assert journal.read(place / "out") == []


class Brings(WithMasterCheckpointHook[int]):
    """Mixed into functions; its hook has the name of the function's class."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def create_master_trigger_restore_hook(self) -> Service:
        return Service(self._place, type(self).__name__, "")


class Whole(Brings, ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return elements


class Plain(Brings, WindowFunction[Any, Any, Any, Any]):
    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        return inputs


class First(Brings, ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1


class Newest(Brings, AggregateFunction):
    def create_accumulator(self) -> str:
        return ""

    def add(self, value: str, accumulator: str) -> str:
        return value

    def get_result(self, accumulator: str) -> str:
        return accumulator

    def merge(self, a: str, b: str) -> str:
        return b


class Same(Brings, AsyncFunction[Any, Any]):
    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]


class Both(Brings, CoGroupFunction):
    def co_group(self, first: Any, second: Any) -> Any:
        return first


class Pair(Brings, ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        yield left


AROUND: dict[str, tuple[Callable[[KeyedStream, Path], DataStream], set[str]]] = {
    "process": (lambda s, p: s.count_window(1).process(Whole(p), "string"), {"Whole"}),
    "apply": (lambda s, p: s.count_window(1).apply(Plain(p), "string"), {"Plain"}),
    "reduce": (lambda s, p: s.count_window(1).reduce(First(p), Whole(p), output_type="string"), {"First", "Whole"}),
    "aggregate": (
        lambda s, p: s.count_window(1).aggregate(Newest(p), Plain(p), "string", "string"),
        {"Newest", "Plain"},
    ),
    "with an evictor": (
        lambda s, p: s.count_window(1).evictor(CountEvictor.of(1)).reduce(First(p), Whole(p), output_type="string"),
        {"First", "Whole"},
    ),
    "all keys": (lambda s, p: s.count_window_all(1).reduce(First(p), output_type="string"), {"First"}),
    "async": (lambda s, p: AsyncDataStream.unordered_wait(s, Same(p), Time.seconds(9), 1, "string"), {"Same"}),
    "co_group": (
        lambda s, p: (
            s.co_group(s)
            .where(lambda word: word)
            .equal_to(lambda word: word)
            .window(TumblingProcessingTimeWindows.of(Time.seconds(9)))
            .apply(Both(p), "string")
        ),
        {"Both"},
    ),
    "interval join": (
        lambda s, p: s.interval_join(s).between(Time.seconds(-1), Time.seconds(1)).process(Pair(p), "string"),
        {"Pair"},
    ),
}


@pytest.mark.parametrize("around", AROUND)
def test_functions_inside_of_windows_and_joins_bring_theirs(place: Path, around: str) -> None:
    """Before, none of these was asked for its hook, and nothing said so."""
    apply, expected = AROUND[around]
    told = Program()
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda word, _: ord(word))
    words = told.source("in", "string").assign_timestamps_and_watermarks(times)
    stream = words.key_by(lambda word: word, "string")
    apply(stream, place).uid("step").sink_to(Journal(place / "out")).uid("out")
    run(told, place / "job", epochs("in", BATCHES[:1]))
    assert set(newest(place).master_states) == expected
    for name in expected:
        assert log(place, name)[:2] == ["reset", "checkpoint 1: 1"]


@pytest.mark.parametrize("tolerated", [0, 2])
def test_a_hook_that_always_fails_fails_the_job_at_the_tolerated_number(place: Path, tolerated: int) -> None:
    """Before, the job ran for ever without a checkpoint and without output, and all that it said was a warning."""
    told = program(place, Told(place, "service", "always"))
    job = master(told, place / "job", epochs("in", [["a"]] * 100), {TOLERABLE: tolerated})
    with pytest.raises(JobExecutionError, match=r"A master hook failed. Master hook 'service': the service is down"):
        job.run()
    assert job.statistics.create_snapshot().counts.failed == tolerated + 1
    assert journal.read(place / "out") == []


def test_one_that_always_fails_ends_a_job_that_restarts_without_end(place: Path) -> None:
    told = program(place, Told(place, "service", "always"))
    job = master(told, place / "job", epochs("in", [["a"]] * 100), RESTARTING)
    with pytest.raises(JobExecutionError, match=r"times in a row in the same way, so no restart can help"):
        job.run()
    assert journal.read(place / "out") == []


class NeverAnswers(Service):
    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, executor: Executor | None) -> Any:
        if self._trouble == "blocks":
            threading.Event().wait()
        return Future()


class ToldNever(Told):
    def create_master_trigger_restore_hook(self) -> Service:
        return NeverAnswers(*self._hook)


@pytest.mark.parametrize("trouble", ["blocks", "gives a future that nobody completes"])
def test_one_that_never_answers_ends_the_job_by_its_name(place: Path, trouble: str) -> None:
    told = program(place, ToldNever(place, "service", trouble))
    options = {"execution.checkpointing.timeout": "50 ms"}
    with pytest.raises(JobExecutionError, match=r"Master hook 'service': it has not answered in 0.05 s"):
        run(told, place / "job", epochs("in", [["a"]] * 100), options)
    assert journal.read(place / "out") == []
    run(program(place, Told(place, "service")), place / "job", epochs("in", [["a"]] * 3))
    assert journal.read(place / "out") == ["a", "a", "a"]


@pytest.mark.parametrize("method", ["reset", "restore_checkpoint"])
def test_one_that_never_takes_its_state_back_ends_the_job_by_its_name(place: Path, method: str) -> None:
    if method == "restore_checkpoint":
        run(program(place, Told(place, "service")), place / "job", epochs("in", BATCHES[:1]))

    class Stuck(Service):
        pass

    setattr(Stuck, method, lambda self, *_: threading.Event().wait())

    class ToldStuck(Told):
        def create_master_trigger_restore_hook(self) -> Service:
            return Stuck(*self._hook)

    options = {"execution.checkpointing.timeout": "50 ms"}
    with pytest.raises(JobExecutionError, match=rf"Master hook 'service', {method}\(\): it has not answered"):
        run(program(place, ToldStuck(place, "service")), place / "job", epochs("in", BATCHES), options)


@pytest.mark.parametrize(
    ("functions", "why"),
    [
        (lambda place: [Told(place, "service"), Told(place, "service")], "'step-0' and 'step-1' both have"),
        (lambda place: [Told(place, " ")], "'step-0': A master hook needs a name"),
        (lambda place: [Told(place, 7)], "'step-0': A master hook needs a name, not 7"),  # type: ignore[arg-type]
    ],
)
def test_names_that_cannot_be_are_refused_before_anything_runs(place: Path, functions: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        run(program(place, *functions(place)), place / "job", epochs("in", BATCHES))
    assert journal.read(place / "out") == []


class Nothing(Told):
    def create_master_trigger_restore_hook(self) -> Any:
        return "a hook"


class Broken(Told):
    def create_master_trigger_restore_hook(self) -> Any:
        raise OSError("no route to the service")


class Nameless(Told):
    def create_master_trigger_restore_hook(self) -> Service:
        hook = super().create_master_trigger_restore_hook()
        hook.get_identifier = lambda: {}["name"]  # type: ignore[method-assign]
        return hook


def test_a_step_without_a_hook_is_reported(place: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'step-0'.*'a hook', not a MasterTriggerRestoreHook"):
        run(program(place, Nothing(place, "x")), place / "job", epochs("in", BATCHES))
    with pytest.raises(JobExecutionError, match="'step-0' could not create its master hook: OSError: no route"):
        run(program(place, Broken(place, "x")), place / "job", epochs("in", BATCHES))
    with pytest.raises(JobExecutionError, match="'step-0' could not name its master hook: KeyError: 'name'"):
        run(program(place, Nameless(place, "x")), place / "job", epochs("in", BATCHES))


@pytest.mark.parametrize(
    "stored", [{"data": "no base64!"}, {}, 7, {"data": base64.b64encode(b"no document").decode()}, {"data": 7}]
)
def test_damaged_state_of_a_hook_is_reported_and_not_restored(place: Path, stored: Any) -> None:
    run(program(place, Told(place, "service")), place / "job", epochs("in", BATCHES[:1]))
    damaged = place / "damaged" / "chk-1" / "_metadata"
    original = Path(tidiness.retained(tidiness.job_directory(place / "job"))[-1].path) / "_metadata"
    damaged.parent.mkdir(parents=True)
    document = decode(original.read_bytes(), "")
    damaged.write_bytes(encode(replace(document, master_states={"service": stored})))
    with pytest.raises(CorruptFileError):
        run(program(place, Told(place, "service")), place / "new", [], {PATH: str(damaged)}, name="new")
    assert not any(line.startswith("restored") for line in log(place))


def test_one_that_does_not_answer_in_time_fails_the_checkpoint_and_not_the_job(place: Path) -> None:
    class Silent(Service):
        def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, executor: Executor | None) -> Any:
            answer: Future[int] = Future()
            if checkpoint_id > 1:
                answer.set_result(checkpoint_id)
            return answer

    class ToldSilent(Told):
        def create_master_trigger_restore_hook(self) -> Any:
            return Silent(place, "service", "")

    started = time.monotonic()
    options = {**ONE_IS_TOLERATED, "execution.checkpointing.timeout": "300 ms"}
    run(program(place, ToldSilent(place, "service")), place / "job", epochs("in", BATCHES[:2]), options)
    assert time.monotonic() - started >= 0.3
    assert journal.read(place / "out") == ["a", "b"]
    assert newest(place).checkpoint_id == 2
