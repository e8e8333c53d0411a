"""The processes of jobs: how they are started, what they say, how they end with their job manager."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from holdfast.dispatcher.protocol import ProcessOutcome
from holdfast.dispatcher.store import DispatcherStores, SubmittedProgram
from holdfast.errors import ConfigurationError, CorruptFileError
from holdfast.ha.execution_plan_store import ExecutionPlan
from holdfast.ha.job_result_store import FailureCause
from holdfast.ha.options import HA_LEADER_SESSION, HA_SUBMISSION
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.rest.client import RestClient, RestError, addresses
from holdfast.runtime.job.options import JOB_ID, JOB_NAME, PYTHON_FILES, REST_ENABLE, REST_PORT
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.scheme import file_system_for

# What a job manager tells the process of a job, and what that tells back: files and lines of JSON.
#
# The directory of a job in the working directory::
#
#     start.json      what is to be run; for the user of the job manager alone
#     program/        the files that were submitted; the process works there
#     log, log.1      what its processes have written, and what the log was before it became too long
#
# The process inherits a pipe, whose number is its second argument, into which it writes one object a line: ``launched``
# (job id, root, create_subdir, name) when the program has executed its job, and ``ended`` as its last word. A process
# that has no job yet says ``ready`` first, and reads the directory of its job from its standard input.

START: Final = "start.json"
PROGRAM: Final = "program"
LOG: Final = "log"
SPARE: Final = "-"
"""In place of the directory: it comes later."""
_T = TypeVar("_T", "LaunchedJob", ProcessOutcome, FailureCause)


@dataclass(frozen=True)
class ProcessStart:
    """What a process runs.

    Attributes:
        script: The program's name among the files.
        arguments: What it finds behind its name.
        options: Options that win over its own.
        defaults: Options over which its own win.
    """

    script: str
    arguments: tuple[str, ...]
    options: Mapping[str, str]
    defaults: Mapping[str, str]

    def write(self, directory: Path) -> None:
        """Write it, readable for the user of this process alone."""
        path = directory / START
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> ProcessStart:
        """Read it.

        Raises:
            CorruptFileError: It is not there, or not whole.
        """
        path = directory / START
        try:
            body = json.loads(path.read_text())
            script, arguments, options, defaults = map(body.get, ("script", "arguments", "options", "defaults"))
            texts = (script, *arguments, *options.values(), *defaults.values())
            if type(arguments) is not list or not all(type(text) is str for text in texts):
                raise TypeError("a field is of another type")
            return cls(script, tuple(arguments), options, defaults)
        except (OSError, *PARSE_ERRORS) as error:
            raise CorruptFileError(str(path), None, f"it does not say what is to be run: {error!r:.300}.") from error


@dataclass(frozen=True)
class LaunchedJob:
    """Where the job of a process is.

    Attributes:
        root: The directory of checkpoints.
        create_subdir: Whether the job has a directory of its own in it.
    """

    job_id: str
    name: str
    root: str
    create_subdir: bool


def launched_line(job: LaunchedJob) -> bytes:
    """Return the line that says so."""
    return _line({"event": "launched", **asdict(job)})


def ended_line(outcome: ProcessOutcome) -> bytes:
    """Return the last line of a process."""
    return _line({"event": "ended", **asdict(outcome)})


def ready_line() -> bytes:
    """Return the line of a process that waits for a job."""
    return _line({"event": "ready"})


def is_ready_line(line: bytes) -> bool:
    """Whether a line is that, and whole."""
    return line == ready_line()


def parse_line(line: bytes) -> LaunchedJob | ProcessOutcome | None:
    """Read a line; None if it is not whole: the process died while it wrote."""
    try:
        body: dict[str, Any] = json.loads(line)
        kind = body.pop("event")
        if kind == "launched":
            return _checked(LaunchedJob(**body))
        failure = body.pop("failure")
        return _checked(ProcessOutcome(**body, failure=None if failure is None else _checked(FailureCause(**failure))))
    except PARSE_ERRORS:
        return None


def _checked(found: _T) -> _T:
    """What was read, if each field is of its type."""
    for field in fields(found):
        if type(getattr(found, field.name)).__name__.replace("NoneType", "None") not in str(field.type).split(" | "):
            raise TypeError(field.name)
    return found


def _line(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode() + b"\n"


# Processes that a job manager keeps ready: everything is imported and a JVM is warm, only the job is missing.
#
# ::
#
#     <working directory>/spare/<n>/log        what it writes; becomes the log of its job
#     <working directory>/spare/<n>/program/   where it works; becomes the directory of its program
#     <working directory>/spare/<n>/start.json options that every job has, unless it says something else
#
# The first two are renamed when it gets a job. So the process, its JVM and whatever they start find themselves where
# any process of a job does.

_log = get_logger(__name__)


class SpareProcess:
    """One process without a job; safe to use from several threads.

    Args:
        command: What runs a job.
        directory: Where it works until it gets one; is made.
        environment: Of the process.
        defaults: Options of its job, as far as they are known.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], defaults: Mapping[str, str]
    ) -> None:
        self._directory = directory
        (directory / PROGRAM).mkdir(parents=True, mode=0o700)
        ProcessStart("", (), {}, defaults).write(directory)
        reading, writing = os.pipe()
        self.lines: BinaryIO = os.fdopen(reading, "rb")
        try:
            with (directory / LOG).open("ab") as output:
                self.process = subprocess.Popen(
                    [*command, SPARE, str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=directory / PROGRAM,
                    env=dict(environment),
                    pass_fds=(writing,),
                    start_new_session=True,
                )
        finally:
            os.close(writing)
        self._is_ready = threading.Event()
        threading.Thread(target=self._wait, name="holdfast-spare", daemon=True).start()

    def is_ready(self) -> bool:
        """Whether it waits for a job."""
        return self._is_ready.is_set() and self.process.poll() is None

    def enter(self, directory: Path) -> None:
        """Make its directory that of a job, whose program and log are not there yet.

        Raises:
            OSError: They are.
        """
        directory.mkdir(parents=True, exist_ok=True)
        (self._directory / PROGRAM).rename(directory / PROGRAM)
        (self._directory / LOG).rename(directory / LOG)
        shutil.rmtree(self._directory, ignore_errors=True)

    def begin(self, directory: Path) -> None:
        """Let it run what the directory says.

        Raises:
            OSError: It has died.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(f"{directory}\n".encode())
        self.process.stdin.flush()

    def end(self) -> None:
        """End it at once, with its JVM."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait(self) -> None:
        if is_ready_line(self.lines.readline()):
            self._is_ready.set()
            _log.info("a spare process is ready: %d", self.process.pid)
        else:
            _log.warning("a spare process has ended before it was ready; what it said: %s", self._last_words())

    def _last_words(self) -> str:
        try:
            return (self._directory / LOG).read_text(errors="replace")[-1000:]
        except OSError:
            return ""


class SpareProcesses:
    """So many of them; safe to use from several threads.

    Args:
        number: How many are kept.
        command: What runs a job.
        directory: The working directory of the job manager.
    """

    def __init__(self, number: int, command: Sequence[str], directory: Path) -> None:
        self._number = number
        self._command = command
        self._directory = directory / _DIRECTORY
        self._lock = threading.Lock()
        self._spares: list[SpareProcess] = []
        self._made = 0
        shutil.rmtree(self._directory, ignore_errors=True)

    def fill(self, environment: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        """Start as many as are missing. Does not wait until they are ready.

        Args:
            environment: Of the processes.
            defaults: Options of every job.
        """
        with self._lock:
            self._spares = [spare for spare in self._spares if spare.process.poll() is None]
            while len(self._spares) < self._number:
                self._made += 1
                try:
                    spare = SpareProcess(self._command, self._directory / str(self._made), environment, defaults)
                except OSError as error:
                    _log.warning("no spare process can be started: %s", error)
                    return
                self._spares.append(spare)

    def take(self) -> SpareProcess | None:
        """Return one that is ready, which is the caller's from now on; None if there is none."""
        with self._lock:
            for spare in self._spares:
                if spare.is_ready():
                    self._spares.remove(spare)
                    return spare
        return None

    def close(self) -> None:
        """End those that have no job."""
        with self._lock:
            spares, self._spares = self._spares, []
        for spare in spares:
            spare.end()


_DIRECTORY: Final = "spare"


# One process of a job, from its start to its end, as its job manager sees it.
#
# It is the leader of a process group, so that its JVM ends with it. Its standard input is a pipe that this process
# holds open: whatever becomes of the job manager, the pipe then ends, and the process with all that belongs to it kills
# itself.

_FENCED_CODE: Final = 3
_LONGEST_LOG: Final = 64 << 20
_LOG_SECONDS: Final = 60.0
_LAST_WORDS: Final = 4000
_LINGER_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 60.0
_FAREWELL_SECONDS: Final = 20.0


class JobProcess:
    """A process of a job; safe to use from several threads. `run` is called once.

    Args:
        command: What runs a job; the directory and the number of the pipe are added to it.
        directory: The directory of the job, with its program in it.
        environment: Of the process.
        on_launched: Called when the program has executed its job.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        on_launched: Callable[[LaunchedJob], None],
    ) -> None:
        self._command = command
        self._directory = directory
        self._environment = environment
        self._on_launched = on_launched
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self._was_told_to_end = False
        self._outcome: ProcessOutcome | None = None
        self.launched: LaunchedJob | None = None

    @property
    def pid(self) -> int | None:
        """The process, None before it has started."""
        return None if self._process is None else self._process.pid

    def run(self, start: ProcessStart, spare: SpareProcess | None = None) -> ProcessOutcome:
        """Start the process and return how it ended. Blocks.

        Args:
            start: What is to be run.
            spare: A process that has entered the directory, and becomes that of the job; None to start one.

        Raises:
            OSError: It cannot be started.
        """
        with self._lock:
            if self._was_told_to_end:
                if spare is not None:
                    spare.end()
                return ProcessOutcome(None, was_interrupted=True)
            start.write(self._directory)
            lines, process = self._started() if spare is None else self._begun(spare)
            self._process = process
        reader = threading.Thread(target=self._read, args=(lines,), name="holdfast-job-process", daemon=True)
        reader.start()
        ended = threading.Event()
        threading.Thread(target=self._keep_log_short, args=(ended,), name="holdfast-job-log", daemon=True).start()
        code = process.wait()
        ended.set()
        self._signal(signal.SIGKILL)  # what it has left behind
        with self._lock:
            self._is_over = True
        reader.join(_LINGER_SECONDS)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # what it was told it never read
            process.stdin.close()
        return self._told(code)

    def end(self, *, at_once: bool) -> None:
        """End the process: after the epoch, if it comes to its end soon, or at once. Does not block."""
        with self._lock:
            self._was_told_to_end = True
        if at_once:
            self._signal(signal.SIGKILL)
            return
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)  # Spark ends with the program
        self._signal_later(_GRACE_SECONDS)

    def _begun(self, spare: SpareProcess) -> tuple[BinaryIO, subprocess.Popen[bytes]]:
        with suppress(BrokenPipeError):  # it has died meanwhile, as any process may
            spare.begin(self._directory)
        return spare.lines, spare.process

    def _keep_log_short(self, ended: threading.Event) -> None:
        while not ended.wait(_LOG_SECONDS):
            self._cut_log()

    def _cut_log(self) -> None:
        """Begin the log anew when it is long, and keep what it had beside it; what comes in between may be lost.

        The process has it open and adds to its end, so it stays the same file.
        """
        log, before = self._directory / LOG, self._directory / f"{LOG}.1"
        try:
            if log.exists() and log.stat().st_size > _LONGEST_LOG:
                before.unlink(missing_ok=True)  # on a disk that is full there may be no room for both
                shutil.copyfile(log, before)
                os.truncate(log, 0)
        except OSError as error:
            _log.warning("the log %s is long, and was not cut: %s", log, error)

    def _started(self) -> tuple[BinaryIO, subprocess.Popen[bytes]]:
        self._cut_log()
        log = self._directory / LOG
        reading, writing = os.pipe()
        lines = os.fdopen(reading, "rb")
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [*self._command, str(self._directory), str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._directory / PROGRAM,
                    env=dict(self._environment),
                    pass_fds=(writing,),
                    start_new_session=True,
                )
        except OSError:
            lines.close()
            raise
        finally:
            os.close(writing)
        return lines, process

    def _read(self, lines: BinaryIO) -> None:
        with lines:
            for line in lines:
                found = parse_line(line)
                if isinstance(found, ProcessOutcome):
                    self._outcome = found
                    self._signal_later(_FAREWELL_SECONDS)  # a thread of the program may never end
                elif found is not None:
                    self.launched = found
                    self._on_launched(found)

    def _signal_later(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._signal, (signal.SIGKILL,))
        timer.daemon = True
        timer.start()

    def _signal(self, number: int) -> None:
        with self._lock:
            if self._process is not None and not self._is_over:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)

    def _told(self, code: int) -> ProcessOutcome:
        if self._outcome is not None:
            outcome = self._outcome
            return replace(outcome, was_interrupted=True) if self._was_told_to_end else outcome
        if code == _FENCED_CODE:
            return ProcessOutcome(None, was_fenced=True)
        has_run = self.launched is not None
        # One that ends itself without a job would do so each time; what a signal ends may be well the next time.
        has_ended_itself = code >= 0 and not has_run
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        when = " before it had executed a job" if has_ended_itself else ""
        return ProcessOutcome(
            "FAILED" if has_ended_itself else None,
            has_run=has_run,
            was_interrupted=self._was_told_to_end,
            failure=FailureCause("ProcessDied", f"The process of the job died with {how}{when}.", self._last_words()),
        )

    def _last_words(self) -> str:
        try:
            with (self._directory / LOG).open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _LAST_WORDS))
                return log.read().decode(errors="replace")
        except OSError:
            return ""


# The processes of the jobs that one term leads, on this host.

_OF_THE_CLUSTER: Final = ("high-availability.", "kubernetes.", "s3.")
_OF_THE_JOB_MANAGER: Final = ("rest.", "process.", "jobmanager.", "jobstore.", "job-result-store.", "cleanup-strategy.")
_MODULES: Final = (".py", ".zip", ".egg", ".whl")
_ADDRESS_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.2


class LocalProcesses:
    """Starts, finds and ends the processes of jobs; safe to use from several threads.

    Args:
        configuration: Of the job manager. What it says of the cluster wins over programs, the rest are their defaults.
        stores: Where the files of programs are.
        directory: The working directory; each job has one of its own in it.
        session: The session in which the job manager leads.
        command: What runs a job.
        spares: Processes that are ready for a job.
    """

    def __init__(
        self,
        configuration: Configuration,
        stores: DispatcherStores,
        directory: Path,
        session: str,
        command: Sequence[str],
        spares: SpareProcesses,
    ) -> None:
        self._configuration = configuration
        self._stores = stores
        self._directory = directory / "jobs"
        self._session = session
        self._command = command
        self._spares = spares
        self._lock = threading.Lock()
        self._processes: dict[JobID, JobProcess] = {}
        self._callbacks: dict[JobID, Callable[[str], None]] = {}

    def prepare(self, plan: ExecutionPlan, start: int) -> None:
        """Note that a process is about to be started, so that it can be ended."""
        directory = self.directory_of(plan.job_id)
        process = JobProcess(
            self._command,
            directory,
            process_environment(),
            lambda job: self._launched(plan.job_id, job),
        )
        with self._lock:
            self._processes[plan.job_id] = process

    def run(self, plan: ExecutionPlan, start: int, on_launched: Callable[[str], None]) -> ProcessOutcome:
        """Run a prepared process to its end. Blocks.

        Raises:
            ConfigurationError: An option of the program does not fit, as by another release that had taken it.
            HoldfastError: The files of the program are not there.
            OSError: The process cannot be started.
        """
        self._callbacks[plan.job_id] = on_launched
        directory = self.directory_of(plan.job_id)
        told = self._start_of(plan, directory)
        program = directory / PROGRAM
        if program.exists():
            shutil.rmtree(program)
        # The log of an earlier process goes on in one that is started for it.
        spare = None if (directory / LOG).exists() else self._spares.take()
        try:
            if spare is not None:
                spare.enter(directory)
            self._stores.fetch(plan, program)
        except BaseException:
            if spare is not None:
                spare.end()
            raise
        return self._processes[plan.job_id].run(told, spare)

    def cancel(self, job_id: JobID) -> None:
        """Have the job of a running process cancelled.

        Raises:
            RestError: It cannot be told.
        """
        self.client_of(job_id, _ADDRESS_SECONDS).cancel()

    def end(self, job_id: JobID, *, at_once: bool) -> None:
        """End a process, also one that is only prepared."""
        process = self._processes.get(job_id)
        if process is not None:
            process.end(at_once=at_once)

    def forget(self, job_id: JobID) -> None:
        """Remove the program of a job; its log stays."""
        shutil.rmtree(self.directory_of(job_id) / PROGRAM, ignore_errors=True)

    def directory_of(self, job_id: JobID) -> Path:
        """The directory of a job in the working directory."""
        return self._directory / str(job_id)

    def log_of(self, job_id: JobID) -> Path:
        """What the processes of a job have written."""
        return self.directory_of(job_id) / LOG

    def client_of(self, job_id: JobID, patience: float = 0.0) -> RestClient:
        """Return a client of the process that runs a job.

        Args:
            job_id: The job.
            patience: Seconds for which a process may take to say where it listens.

        Raises:
            RestError: None runs, or it does not say where it listens.
        """
        process = self._processes.get(job_id)
        waiting = threading.Event()
        while True:
            client = None if process is None else _client(process)
            if client is not None:
                return client
            if patience <= 0 or process is None:
                raise RestError(f"The process of job {job_id} does not answer yet; try again.", 503)
            waiting.wait(_LOOK_SECONDS)
            patience -= _LOOK_SECONDS

    def _launched(self, job_id: JobID, job: LaunchedJob) -> None:
        if job.job_id != str(job_id):
            _log.error("The program of job %s has executed job %s; only its own is led here.", job_id, job.job_id)
        self._callbacks[job_id](job.name)

    def _start_of(self, plan: ExecutionPlan, directory: Path) -> ProcessStart:
        program = SubmittedProgram.of(plan)
        given = self._configuration.to_texts()
        own = Configuration(program.options)
        for key in sorted(own.key_set()):
            if key.startswith(_OF_THE_CLUSTER) and key in given and given[key] != program.options[key]:
                _log.warning("job %s: option %s is the job manager's to set", plan.job_id, key)
        forced: dict[str, Any] = {
            **{key: value for key, value in given.items() if key.startswith(_OF_THE_CLUSTER)},
            JOB_ID.key: str(plan.job_id),
            HA_LEADER_SESSION.key: self._session,
            HA_SUBMISSION.key: program.submission,
            REST_ENABLE.key: "true",
            REST_PORT.key: "0",
        }
        modules = [name for name in program.files if name != program.script and name.endswith(_MODULES)]
        if modules:
            own.set(PYTHON_FILES.key, [*own.get(PYTHON_FILES), *(str(directory / PROGRAM / name) for name in modules)])
        combined, _ = Configuration(forced).overriding(own)
        return ProcessStart(
            program.script, program.arguments, combined.to_texts(), default_options(self._configuration)
        )


def default_options(configuration: Configuration) -> dict[str, str]:
    """What holds for the jobs of a job manager with these options, unless they say something else."""
    not_for_jobs = (*_OF_THE_CLUSTER, *_OF_THE_JOB_MANAGER)
    defaults = {
        key: value
        for key, value in configuration.to_texts().items()
        if not key.startswith(not_for_jobs) and key not in (JOB_ID.key, JOB_NAME.key)
    }
    defaults.setdefault("spark.ui.showConsoleProgress", "false")  # its output is a log
    return defaults


def process_environment() -> dict[str, str]:
    """The environment of a process of a job."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # Spark starts its workers by this name; the program's own choice is in its options.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    return environment


def check_options(options: Mapping[str, str]) -> None:
    """Check the options of a program before it is accepted.

    Raises:
        ConfigurationError: One is not known, or does not fit.
    """
    import holdfast.datastream.environment.stream_execution_environment  # noqa: F401 - it knows all options

    Configuration(options).validate()
    taken = [option.key for option in (HA_LEADER_SESSION, HA_SUBMISSION) if option.key in options]
    if taken:
        raise ConfigurationError(f"Option {taken[0]!r} is the job manager's to set.")


def _client(process: JobProcess) -> RestClient | None:
    job = process.launched
    if job is None:
        return None
    place = JobDirectory(
        file_system_for(job.root), job.root, JobID.from_hex(job.job_id), create_subdir=job.create_subdir
    )
    for address in addresses(place):
        if address.is_here and address.pid == process.pid:
            return RestClient(address)
    return None
