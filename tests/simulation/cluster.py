"""Who acts: processes that lead, those who ask something of the job, those who read, and who starts it all again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import FencedError, HoldfastError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.runtime.job.control import JobControl, JobStatus, SnapshotRequest
from holdfast.runtime.job.engine import Job, job_directory
from holdfast.runtime.job.progress import ProgressReporter
from holdfast.runtime.master.job_master import JobMaster
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import FencedRegister, FileRegister
from tests.simulation import workload
from tests.simulation.kind import Kind
from tests.simulation.primitives import SimulatedClock
from tests.simulation.settings import Settings
from tests.simulation.world import Process, World

NAME = "job"
JOB_ID = JobID.from_name(NAME)
_QUIET_SECONDS = 2000.0


@dataclass
class Cluster:
    """All processes of a history.

    Attributes:
        world: The world.
        settings: How the job is set.
        kind: What its tasks are.
        register_of: Makes the register as a process sees it.
        inputs: Of the job.
        masters: Those that run, by process.
        statuses: How those that ended have ended.
    """

    world: World
    settings: Settings
    kind: Kind
    register_of: Callable[[], FencedRegister] | None
    inputs: list[list[workload.Payment]]
    masters: dict[Process, JobMaster] = field(default_factory=dict)
    statuses: list[JobStatus] = field(default_factory=list)
    last_error: BaseException | None = None
    fatal: BaseException | None = None
    elected: set[str] = field(default_factory=set)
    savepoint_completed: Callable[[str], None] = lambda path: None
    start_readers: Callable[[], object] = lambda: None
    leaders: dict[int, Process] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    started: int = 0

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended for good."""
        return JobStatus.FINISHED in self.statuses

    @property
    def is_alone(self) -> bool:
        """Whether no process runs the job, or begins to."""
        return all(process.is_dead for process in self.processes)

    def start(self) -> Process:
        """A new process that runs the job."""
        self.started += 1
        process = Process(self.world, f"driver {self.started}")
        self.processes.append(process)
        self.world.spawn(process, "main", lambda: self._drive(process))
        return process

    def directory(self) -> Any:
        """The job's directory, as a process sees it."""
        configuration = Configuration(dict(self.settings.options))
        return job_directory(LocalFileSystem(), workload.ROOT, JOB_ID, configuration)

    def register(self) -> FencedRegister:
        """The register, as a process sees it."""
        return FileRegister.of(self.directory()) if self.register_of is None else self.register_of()

    def _drive(self, process: Process) -> None:
        try:
            directory = self.directory()
            directory.create()
            register = self.register()
            settings = self.settings
            job = Job(
                job_id=JOB_ID,
                name=NAME,
                graph=self.kind.graph(settings.parallelism, settings.sinks),
                configuration=Configuration(dict(settings.options)),
                directory=directory,
                register=register,
                engine=self.kind.engine(self.world, self.inputs, settings),
                default_parallelism=settings.parallelism,
                owner=process.name,
                clock=SimulatedClock(process),
                leadership=SimulatedLeadership(self, process) if settings.is_elected else None,  # type: ignore[arg-type]
            )
            master = JobMaster(job, ProgressReporter(NAME))
            self.masters[process] = master
            self.statuses.append(master.run())
        except FencedError as error:
            self.last_error = error
        except HoldfastError as error:
            self.last_error = self.fatal = error
        finally:
            self.masters.pop(process, None)
            process.is_dead = True


class SimulatedLeadership:
    """An election that names whom it likes, also several at a time; what it says is only ever a hint."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self.has_waited = False
        self._cluster, self._process = cluster, process

    @contextmanager
    def campaigning(self, control: JobControl) -> Iterator[None]:
        yield

    def wait_until_leading(self, control: JobControl) -> bool:
        world = self._cluster.world
        while not control.is_ending:
            control.reinstate()
            if self._process.name in self._cluster.elected:
                return True
            self.has_waited = True
            world.block(lambda: self._process.name in self._cluster.elected or control.is_ending, None)
        return False

    def stand_by(self, error: FencedError, control: JobControl) -> None:
        self._cluster.elected.discard(self._process.name)


class Supervisor:
    """Starts processes, names leaders, asks for things, until the weather is good and the job has ended.

    Args:
        cluster: The processes.
        calm: Called when the bad weather ends.
        stir: Called each time that something may be asked for.
    """

    def __init__(self, cluster: Cluster, calm: Callable[[], None]) -> None:
        self._cluster, self._calm = cluster, calm

    def live(self) -> None:
        """The story of a history."""
        cluster, world = self._cluster, self._cluster.world
        choices = world.choices
        while cluster.started < cluster.settings.processes and not cluster.is_finished:
            process = cluster.start()
            cluster.start_readers()
            if choices.below(4) or cluster.settings.is_elected:
                cluster.elected.add(process.name)
            moments = 1 + choices.below(8)
            for _ in range(moments):
                world.block(lambda: cluster.is_alone, (0.05, 0.01, 0.2, 1.0)[choices.below(4)])
                self._ask()
                if process.is_dead:
                    break
        self._calm()
        world.note("the weather is good: world")
        self._end()

    def _end(self) -> None:
        """One process after the other until the job has ended."""
        cluster, world = self._cluster, self._cluster.world
        for _ in range(6):
            if cluster.is_finished:
                return
            for process in cluster.processes:
                process.paused_until = 0
            if cluster.is_alone:
                process = cluster.start()
                cluster.elected.add(process.name)
            world.block(lambda: cluster.is_finished or cluster.is_alone, _QUIET_SECONDS)
            for process in cluster.processes if not cluster.is_finished else ():
                process.kill()
            world.block(None, 1.0)
        if not cluster.is_finished:
            world.fail(f"the job does not end in good weather: {cluster.last_error!r}")

    def _ask(self) -> None:
        cluster, choices = self._cluster, self._cluster.world.choices
        if not choices.chance(cluster.settings.asks):
            return
        masters = list(cluster.masters.items())
        if not masters:
            return
        process, master = masters[choices.below(len(masters))]
        what = choices.below(9)
        world = cluster.world
        world.note(f"asked: {_ASKED[what]}")
        if what == 1:
            master.control.request(SnapshotRequest())
        elif what == 2:
            self._ask_for_savepoint(master, stop=False)
        elif what == 3:
            self._ask_for_savepoint(master, stop=True)
        elif what in (4, 5):
            master.control.rescale({"": 1 + choices.below(3)})
        elif what == 6:
            cluster.elected.discard(process.name)
            if cluster.settings.is_elected:
                master.control.depose()
        elif what == 8:
            process.kill()
        elif what == 7:
            for other in cluster.masters:
                cluster.elected.add(other.name)

    def _ask_for_savepoint(self, master: JobMaster, *, stop: bool) -> None:
        asked = SnapshotRequest(is_savepoint=True, directory=workload.SAVEPOINTS, stop=stop)

        def answered(future: Future[Any]) -> None:
            if future.exception() is None:
                self._cluster.savepoint_completed(future.result())

        master.control.request(asked).add_done_callback(answered)


_ASKED = (
    "nothing",
    "checkpoint",
    "savepoint",
    "stop with savepoint",
    "rescale",
    "rescale",
    "revoke leadership",
    "grant leadership to all",
    "kill a process wherever it waits",
)

__all__ = ["Cluster", "Settings", "Supervisor", "suppress"]
