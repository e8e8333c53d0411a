"""Control connections that are lost, slow or late, and drivers that sleep, judged by the output of the job."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import ParquetFileSink
from holdfast.errors import ConfigurationError, EngineUnavailableError, FencedError, HoldfastError
from holdfast.runtime.exchange.stage_message import EpochDescriptor, JobDescriptor
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.job.engine import EpochInput, StagedInput
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.realtime.control import ControlAddress, ControlServer, DriverConnection, Heartbeat
from holdfast.runtime.realtime.engine import TaskGroup
from holdfast.runtime.realtime.task import RealTimeStage
from holdfast.testing.epoch_runner import run_job
from holdfast.testing.real_time_runner import LocalRealTimeEngine, RealTimeProgram
from tests.stories import ledger
from tests.stories.local import RESTARTING
from tests.unit.runtime.realtime.test_real_time_jobs import KEYS, Count, numbers, until

ROWS = 600
OPTIONS = {**RESTARTING, "execution.checkpointing.interval": "20 ms"}
BEATING = {**OPTIONS, "heartbeat.interval": "100 ms", "heartbeat.timeout": "1500 ms"}
HEARTBEAT = Heartbeat(10, 50)
TO_DRIVER, TO_TASK = "to the driver", "to the task"
WRITERS: list[int] = []


def write(row: Any) -> None:
    WRITERS.append(threading.get_native_id())


def write_slowly(row: Any) -> None:
    time.sleep(4)
    write(row)


class Wire:
    """A TCP proxy between tasks and the driver, which can be cut, held, or lose everything without a word."""

    def __init__(self, target: ControlAddress) -> None:
        self.target = target
        self._open: list[socket.socket] = []
        self._silent: set[str] = set()
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ControlAddress("127.0.0.1", self._listener.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def connections(self) -> int:
        return len(self._open) // 2

    def cut(self, connections: int) -> None:
        """Cut the oldest connections, without a word to either end."""
        for one in self._open[: 2 * connections]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def hold(self, seconds: float) -> None:
        """Let nothing pass for a while."""
        self._flows.clear()
        time.sleep(seconds)
        self._flows.set()

    def fall_silent(self, *directions: str) -> None:
        """Let nothing arrive any more, not even the end of a connection."""
        self._silent.update(directions)

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((self.target.host, self.target.port))
                self._open += [near, far]
                for one, other, direction in ((near, far, TO_DRIVER), (far, near, TO_TASK)):
                    threading.Thread(target=self._pass_on, args=(one, other, direction), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                self._flows.wait()
                if direction not in self._silent:
                    other.sendall(data)
        if direction not in self._silent:
            with suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)


class WiredEngine(LocalRealTimeEngine):
    """Its tasks reach the driver through a wire; the driver sleeps at an epoch until it is woken."""

    def __init__(self, sleeps_at: int | None = None, options: Mapping[str, str] = OPTIONS) -> None:
        super().__init__(options, source_tasks=2)
        self.wires: list[Wire] = []
        self.awake, self.asleep = threading.Event(), threading.Event()
        self._sleeps_at = sleeps_at
        self.secret, self.attempt = b"", 0

    def start_tasks(
        self, job: JobDescriptor, stages: Sequence[Sequence[RealTimeStage]], workers: Sequence[int]
    ) -> TaskGroup:
        wire = Wire(stages[0][0].address)
        self.secret, self.attempt = job.control_secret, stages[0][0].attempt
        self.wires.append(wire)
        wired = [[replace(stage, address=wire.address) for stage in group] for group in stages]
        return super().start_tasks(job, wired, workers)

    def execute(self, epoch: EpochDescriptor, epoch_input: EpochInput | StagedInput | None) -> Any:
        reports = super().execute(epoch, epoch_input)
        if epoch.epoch == self._sleeps_at:
            self.asleep.set()
            assert self.awake.wait(60)
        return reports


def start(place: Path, engine: LocalRealTimeEngine, options: Mapping[str, str] = OPTIONS) -> JobMaster:
    """The numbers of a second or so, counted by key into files."""
    program = RealTimeProgram()
    pairs = numbers(program, 800).filter(lambda row: row.n < ROWS).uid("first")
    counts = pairs.key_by("key").process(Count(), "key bigint, count bigint").uid("count")
    counts.sink_to(ParquetFileSink(place / "out")).uid("out")
    return run_job(program.get_stream_graph(), place / "job", engine, options)


def finish(place: Path, client: JobClient) -> None:
    until(lambda: len(ledger.read(place / "out")) >= ROWS)
    client.stop()
    client.await_termination()
    each_once(place)


def each_once(place: Path) -> None:
    seen = sorted(ledger.read(place / "out"))
    assert seen == sorted({*seen}), "an element was counted twice"
    assert Counter(key for key, _ in seen) == Counter(n % KEYS for n in range(ROWS))


@pytest.mark.parametrize("connections", [1, 4])
def test_tasks_that_lose_their_driver_end_and_each_element_is_counted_once(tmp_path: Path, connections: int) -> None:
    engine = WiredEngine()
    client = JobClient(start(tmp_path, engine))
    for launch in (1, 2):
        until(lambda launch=launch: len(engine.wires) >= launch and len(ledger.read(tmp_path / "out")) > 100 * launch)
        until(lambda: engine.wires[-1].connections >= connections)
        engine.wires[-1].cut(connections)
    until(lambda: len(engine.wires) >= 3)
    finish(tmp_path, client)


def test_messages_that_come_late_lose_nothing_and_end_nothing(tmp_path: Path) -> None:
    engine = WiredEngine()
    client = JobClient(start(tmp_path, engine))
    until(lambda: len(ledger.read(tmp_path / "out")) > 50)
    for _ in range(3):
        engine.wires[0].hold(0.3)
        time.sleep(0.05)
    finish(tmp_path, client)
    assert len(engine.wires) == 1, "no task was started again"


@pytest.mark.parametrize("directions", [(TO_DRIVER, TO_TASK), (TO_DRIVER,), (TO_TASK,)], ids=str)
def test_a_network_that_falls_silent_ends_the_tasks_and_each_element_is_counted_once(
    tmp_path: Path, directions: tuple[str, ...]
) -> None:
    engine = WiredEngine(options=BEATING)
    client = JobClient(start(tmp_path, engine, BEATING))
    for launch in (1, 2):
        until(lambda launch=launch: len(engine.wires) >= launch and len(ledger.read(tmp_path / "out")) > 100 * launch)
        engine.wires[-1].fall_silent(*directions)
    until(lambda: len(engine.wires) >= 3)
    finish(tmp_path, client)


def test_connections_that_are_quiet_for_longer_than_the_timeout_are_not_lost(tmp_path: Path) -> None:
    options = {**BEATING, "execution.checkpointing.interval": "1 h"}
    engine = WiredEngine(options=options)
    program = RealTimeProgram()
    WRITERS.clear()
    numbers(program, 1).for_each(write_slowly).uid("out")
    client = JobClient(run_job(program.get_stream_graph(), tmp_path / "job", engine, options))
    until(lambda: bool(WRITERS))
    time.sleep(3)
    client.cancel()
    assert len(engine.wires) == 1


def test_a_task_that_writes_at_once_stops_when_it_hears_nothing_of_its_driver(tmp_path: Path) -> None:
    WRITERS.clear()
    engine = WiredEngine(options=BEATING)
    program = RealTimeProgram()
    numbers(program, 800).for_each(write).uid("out")
    client = JobClient(run_job(program.get_stream_graph(), tmp_path / "job", engine, BEATING))
    until(lambda: len(set(WRITERS)) == 2)
    before = set(WRITERS)
    engine.wires[0].fall_silent(TO_DRIVER, TO_TASK)
    until(lambda: len(set(WRITERS)) >= 4)
    time.sleep(2)  # longer than the timeout
    WRITERS.clear()
    until(lambda: len(WRITERS) > 400)
    client.cancel()
    assert before.isdisjoint(WRITERS), "a task of the attempt before still writes"


@pytest.mark.parametrize(("interval", "timeout"), [("0 ms", "1 s"), ("1 s", "1 s")])
def test_an_interval_that_is_not_within_the_timeout_is_refused(tmp_path: Path, interval: str, timeout: str) -> None:
    options = {**OPTIONS, "heartbeat.interval": interval, "heartbeat.timeout": timeout}
    with pytest.raises(ConfigurationError, match="must be more than 0 and less than the timeout"):
        start(tmp_path, WiredEngine(options=options), options)


def test_a_driver_that_sleeps_goes_on_with_the_same_tasks(tmp_path: Path) -> None:
    engine = WiredEngine(sleeps_at=4)
    client = JobClient(start(tmp_path, engine))
    assert engine.asleep.wait(60)
    before = len(ledger.read(tmp_path / "out"))
    time.sleep(0.5)
    assert len(ledger.read(tmp_path / "out")) == before, "tasks commit nothing by themselves"
    engine.awake.set()
    finish(tmp_path, client)
    assert len(engine.wires) == 1


def test_nothing_is_taken_of_a_driver_that_sleeps_while_another_one_leads(tmp_path: Path) -> None:
    old = WiredEngine(sleeps_at=4)
    ended: list[Any] = []

    def run_old(master: JobMaster) -> None:
        try:
            ended.append(master.run())
        except HoldfastError as error:
            ended.append(error)

    sleeper = threading.Thread(target=run_old, args=(start(tmp_path, old),))
    sleeper.start()
    assert old.asleep.wait(60)
    client = JobClient(start(tmp_path, LocalRealTimeEngine(OPTIONS, source_tasks=2)))
    until(lambda: len(ledger.read(tmp_path / "out")) >= ROWS)
    old.awake.set()
    sleeper.join(60)
    assert isinstance(ended[0], FencedError), ended
    finish(tmp_path, client)


def greeting(address: ControlAddress, secret: bytes, attempt: int, seconds: float = 10) -> list[Any]:
    """Connect as a task, and return what the driver sent until it ended the connection."""
    found: list[Any] = []
    over = threading.Event()

    def take(message: dict[str, Any] | None) -> None:
        found.append(message)
        if message is None:
            over.set()

    hello = {"stage": 0, "partition": 0, "attempt": attempt, "execution": "x"}
    DriverConnection(address, secret, hello, take, HEARTBEAT)
    assert over.wait(seconds)
    return found


def test_tasks_of_another_attempt_or_without_the_secret_are_not_heard() -> None:
    connected: list[Any] = []
    server = ControlServer(
        "127.0.0.1",
        "127.0.0.1",
        7,
        lambda *message: connected.append(message),
        lambda *task: connected.append(task),
        lambda *task: connected.append(task),
        HEARTBEAT,
    )
    try:
        assert greeting(server.address, server.secret, attempt=6) == [None]
        with pytest.raises(EngineUnavailableError, match="cannot reach the driver"):
            greeting(server.address, b"x" * 32, attempt=7)
        assert connected == []
    finally:
        server.close()
    with pytest.raises(EngineUnavailableError, match="cannot reach the driver"):
        greeting(server.address, server.secret, attempt=7)


@pytest.mark.long
def test_a_task_that_is_started_again_restarts_the_job(tmp_path: Path) -> None:
    """Spark has lost an executor, whose network is silent, and runs its task again on another one."""
    engine = WiredEngine()
    client = JobClient(start(tmp_path, engine))
    until(lambda: len(ledger.read(tmp_path / "out")) > 100)
    engine.wires[0].fall_silent(TO_DRIVER, TO_TASK)
    assert greeting(engine.wires[0].target, engine.secret, engine.attempt, seconds=30)[-1] is None
    until(lambda: len(engine.wires) == 2)
    finish(tmp_path, client)


def test_the_status_of_a_job_that_was_cut_is_that_of_any_job(tmp_path: Path) -> None:
    engine = WiredEngine()
    program = RealTimeProgram()
    counts = program.from_collection([(n % KEYS, n) for n in range(ROWS)], "key bigint, n bigint").uid("rows")
    counted = counts.key_by("key").process(Count(), "key bigint, count bigint").uid("count")
    counted.sink_to(ParquetFileSink(tmp_path / "out")).uid("out")
    master = run_job(program.get_stream_graph(), tmp_path / "job", engine, OPTIONS)
    cutter = threading.Thread(target=lambda: (until(lambda: bool(engine.wires)), engine.wires[0].cut(1)))
    cutter.start()
    assert master.run() is JobStatus.FINISHED
    cutter.join()
    each_once(tmp_path)
