"""Compaction: merging runs of state beside the epochs of a job, in another process or a thread.

No task, no epoch and no stop waits for it. While keys have to be looked up in more runs than
`state.compaction.max-runs`, merges are urgent: they do not run at low priority. The output belongs to no version until
it replaces exactly its inputs, between two epochs; if these have changed, it is dropped. So a crash at any point loses
work and nothing else:

- a version that is restored names either the inputs or the output;
- inputs stay while a checkpoint names them, and outputs that are in no version yet are protected from the sweeper as
  `live`;
- the outputs of a deposed leader are named by nothing, and go when the next leader sweeps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

import humanfriendly

from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange, range_of, subtask_of
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import owner_of
from holdfast.runtime.graph.plan import JobPlan, Step
from holdfast.state.compaction import compact
from holdfast.state.compaction_plan import (
    CompactionOutput,
    CompactionPlan,
    Layer,
    LayerRange,
    TaskMerge,
    TaskMerges,
    apply_compaction,
    choose_merge,
    choose_merge_above,
    components,
    depth,
    layers,
    output_ranges,
)
from holdfast.state.options import COMPACTION_ENABLED, COMPACTION_EXECUTOR, COMPACTION_MAX_RUNS
from holdfast.state.run_file import RunHandle
from holdfast.state.version import StateVersion
from holdfast.storage.file_system import local_path
from holdfast.storage.job_directory import SHARED, FileName
from holdfast.storage.object_store import REQUESTS, s3_environment
from holdfast.storage.scheme import file_system_for

logger = get_logger(__name__)

_WORKER: Final = "holdfast.runtime.compaction_worker"
_PATIENCE: Final = 5.0
_PATIENCE_WITH_THREAD: Final = 1.0
_IDLE: Final = 60.0
_STANDARD_ERROR: Final = 2

_Elsewhere = Callable[[Future[list[RunHandle]], CompactionPlan], None]


class CompactionExecutor(ABC):
    """Runs compactions."""

    def prepare(self) -> None:  # noqa: B027 - a thread needs no time to start
        """Start what is needed, because a plan will be submitted soon."""

    @abstractmethod
    def submit(self, plan: CompactionPlan) -> Future[list[RunHandle]]:
        """Submit a plan; does not block."""

    @abstractmethod
    def close(self) -> None:
        """Cancel all plans."""


def create_compaction_executor(name: str) -> CompactionExecutor:
    """Return the executor that an option names.

    Raises:
        ConfigurationError: The name is unknown.
    """
    if name == "process":
        return ProcessCompactionExecutor()
    if name == "thread":
        return ThreadCompactionExecutor()
    raise ConfigurationError(f"state.compaction.executor is 'process' or 'thread', not {name!r}.")


class ThreadCompactionExecutor(CompactionExecutor):
    """Runs compactions in a daemon thread of this process."""

    def __init__(self) -> None:
        self._plans: SimpleQueue[tuple[CompactionPlan, Future[list[RunHandle]]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def submit(self, plan: CompactionPlan) -> Future[list[RunHandle]]:
        future: Future[list[RunHandle]] = Future()
        self._plans.put((plan, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-compaction", daemon=True)
            self._thread.start()
        return future

    def close(self) -> None:
        """Cancel all plans. The current one ends before its next state or output; a long one is not waited for."""
        self._is_closed = True
        self._plans.put(None)
        if self._thread is not None:
            self._thread.join(_PATIENCE_WITH_THREAD)

    def _run(self) -> None:
        while (submitted := self._plans.get()) is not None:
            plan, future = submitted
            try:
                self._require_open()
                runs = compact(plan, file_system_for(plan.root), self._require_open)
            except Exception as error:  # noqa: BLE001 - the caller of the future gets it
                future.set_exception(error)
            else:
                future.set_result(runs)

    def _require_open(self) -> None:
        if self._is_closed:
            raise StorageError("The job has ended, nothing is compacted any more.")


class ProcessCompactionExecutor(CompactionExecutor):
    """Runs compactions in a process beside the driver, at low priority unless they are urgent.

    The process starts when it is first needed. It gets plans and returns results as lines of JSON, results in a pipe of
    their own, because anything may be printed in a process. It ends with its input, so it does not outlive the driver.
    It is not made by `multiprocessing`, which would run the user's script again. If it dies, its plans fail, and the
    next plan starts it again. An idle process is kept for the next executor, because starting is expensive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._here: ThreadCompactionExecutor | None = None

    @property
    def pid(self) -> int | None:
        """The process id, None if no process runs."""
        worker = self._worker
        return worker.pid if worker is not None and worker.is_alive() else None

    def prepare(self) -> None:
        """Start the process if it does not run; an error is reported by `submit`."""
        with self._lock, suppress(OSError):
            self._running()

    def submit(self, plan: CompactionPlan) -> Future[list[RunHandle]]:
        with self._lock:
            try:
                return self._running().submit(plan, self._submit_here)
            except OSError as error:
                failed: Future[list[RunHandle]] = Future()
                failed.set_exception(StorageError(f"The process that compacts cannot be started: {error}."))
                return failed

    def close(self) -> None:
        """End the process if it is busy; incomplete output is never used."""
        with self._lock:
            worker, self._worker = self._worker, None
            here, self._here = self._here, None
        if worker is not None:
            _idle.give(worker)
        if here is not None:
            here.close()

    def _running(self) -> _Worker:
        if self._worker is None or not self._worker.is_alive():
            settings = s3_environment()
            self._worker = _idle.take(settings) or _Worker(settings)
        return self._worker

    def _submit_here(self, future: Future[list[RunHandle]], plan: CompactionPlan) -> None:
        """Run a plan in this process: it needs classes of the user's script, which only this process has."""
        with self._lock:
            if self._worker is None:
                future.set_exception(StorageError("The job has ended, nothing is compacted any more."))
                return
            if self._here is None:
                self._here = ThreadCompactionExecutor()
            done = self._here.submit(plan)
        done.add_done_callback(lambda one: _forward_result(one, future))


class _Worker:
    """One process that compacts, and the thread that reads its results.

    Args:
        settings: Additions to the environment.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = dict(settings)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Future[list[RunHandle]], CompactionPlan, _Elsewhere]] = {}
        self._next = 0
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(writing)],
                stdin=subprocess.PIPE,
                stdout=_STANDARD_ERROR,
                pass_fds=(writing,),
                env={**os.environ, **settings, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                # Signals for the driver's group, such as that of Ctrl-C, must not reach it.
                start_new_session=True,
            )
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        threading.Thread(target=self._read, args=[reading], name="holdfast-compaction-results", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def is_busy(self) -> bool:
        with self._lock:
            return bool(self._waiting)

    def submit(self, plan: CompactionPlan, elsewhere: _Elsewhere) -> Future[list[RunHandle]]:
        """Submit a plan; `elsewhere` gets it if the process cannot run it."""
        future: Future[list[RunHandle]] = Future()
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._waiting[number] = future, plan, elsewhere
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps({"id": number, "plan": plan.to_json()}).encode() + b"\n")
                self._process.stdin.flush()
            except OSError as error:
                del self._waiting[number]
                future.set_exception(StorageError(f"The process that compacts cannot be reached: {error}."))
        return future

    def end(self) -> None:
        """Kill the process; its futures stay unresolved."""
        with self._lock:
            self._waiting.clear()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError as error:
            logger.debug("the process that compacts had gone: %s", error)
        self._process.kill()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            logger.warning("the process that compacts (pid %d) does not end", self._process.pid)

    def _read(self, reading: int) -> None:
        """Resolve futures by results until the pipe ends; then fail the rest."""
        with os.fdopen(reading, "rb") as answers:
            for line in answers:
                if line.endswith(b"\n"):  # a killed process may leave an incomplete line
                    self._forward_result(json.loads(line))
        code = self._process.wait()
        with self._lock:
            lost, self._waiting = list(self._waiting.values()), {}
        for future, _, _ in lost:
            future.set_exception(StorageError(f"The process that compacts has ended with code {code}."))

    def _forward_result(self, answer: dict[str, Any]) -> None:
        REQUESTS.add(answer.get("requests", {}))
        with self._lock:
            waiting = self._waiting.pop(answer["id"], None)
        if waiting is None:
            return
        future, plan, elsewhere = waiting
        if answer.get("missing"):
            elsewhere(future, plan)
        else:
            _resolve(future, answer)


class _Idle:
    """Keeps at most one idle process for the next executor; it ends after a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._timer: threading.Timer | None = None

    def give(self, worker: _Worker) -> None:
        """Keep an idle process if there is none yet, and end any other."""
        with self._lock:
            if self._worker is None and worker.is_alive() and not worker.is_busy():
                self._worker = worker
                self._timer = threading.Timer(_IDLE, self._expire, [worker])
                self._timer.daemon = True
                self._timer.start()
                return
        worker.end()

    def take(self, settings: Mapping[str, str]) -> _Worker | None:
        """Return the process if it is alive and has these settings."""
        with self._lock:
            worker, self._worker = self._worker, None
            if self._timer is not None:
                self._timer.cancel()
        if worker is None:
            return None
        if worker.is_alive() and worker.settings == settings:
            return worker
        worker.end()
        return None

    def _expire(self, worker: _Worker) -> None:
        with self._lock:
            if self._worker is not worker:
                return
            self._worker = None
        worker.end()


_idle: Final = _Idle()


def _forward_result(done: Future[list[RunHandle]], future: Future[list[RunHandle]]) -> None:
    if done.cancelled():
        future.set_exception(StorageError("The job has ended, nothing is compacted any more."))
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


def _resolve(future: Future[list[RunHandle]], answer: dict[str, Any]) -> None:
    if "error" in answer:
        future.set_exception(HoldfastError(answer["error"]))
    else:
        future.set_result([RunHandle.from_json(run) for run in answer["runs"]])


_FAILURES_TO_PAUSE: Final = 3
_PAUSED_EPOCHS: Final = 50
_LEAST_RUNS: Final = 3
_LARGEST_IN_TASK: Final = 4 * 1024 * 1024
"""Bytes of the runs that a task merges at most; it takes some 20 ms."""


VersionMap = dict[str, StateVersion]


class EpochTime(NamedTuple):
    """An epoch and its processing time.

    Attributes:
        epoch: Its number.
        processing_time: In milliseconds since 1970.
    """

    epoch: int
    processing_time: int


@dataclass(frozen=True)
class _PendingCompaction:
    uid: str
    plan: CompactionPlan
    future: Future[list[RunHandle]]


@dataclass
class CompactionStatistics:
    """The compactions of this attempt.

    Attributes:
        swapped: Compactions whose output was used.
        dropped: Compactions whose output was too late, or that failed.
        bytes_written: Size of all output that was used.
        behind: Runs above the limit in which a key has to be looked up now.
        deepest: The most runs in which a key had to be looked up in an epoch.
    """

    swapped: int = 0
    dropped: int = 0
    bytes_written: int = 0
    behind: int = 0
    deepest: int = 0

    def plus(self, other: CompactionStatistics) -> CompactionStatistics:
        return CompactionStatistics(
            self.swapped + other.swapped,
            self.dropped + other.dropped,
            self.bytes_written + other.bytes_written,
            other.behind,
            max(self.deepest, other.deepest),
        )

    def __str__(self) -> str:
        size = humanfriendly.format_size(self.bytes_written, binary=True)
        return (
            f"compaction: {self.swapped} results ({size}) were used and {self.dropped} dropped; keys were looked up in "
            f"at most {self.deepest} runs"
        )


class Compaction:
    """The compactions of one job attempt. Called by the thread that runs the epochs.

    Args:
        root: The job directory.
        token: Fencing token of the attempt.
        configuration: Configuration of the job.
        executor: Runs plans; None creates the one that the configuration names.
        tasks_merge: Whether tasks merge small runs in an object store as they write theirs.

    Raises:
        ConfigurationError: An option has an invalid value.
    """

    def __init__(
        self,
        root: str,
        token: int,
        configuration: Configuration,
        executor: CompactionExecutor | None = None,
        *,
        tasks_merge: bool = True,
    ) -> None:
        self._root = root
        self._tasks_merge = tasks_merge and local_path(root) is None
        self._token = token
        self._limit = configuration.get(COMPACTION_MAX_RUNS)
        if self._limit < _LEAST_RUNS:
            raise ConfigurationError(f"{COMPACTION_MAX_RUNS.key} is at least {_LEAST_RUNS}, not {self._limit!r}.")
        self._enabled = configuration.get(COMPACTION_ENABLED)
        self._executor = executor or create_compaction_executor(configuration.get(COMPACTION_EXECUTOR))
        self._pending: list[_PendingCompaction] = []
        self._failures = 0
        self._paused = 0
        self._is_declared = False
        self._is_closed = False
        self._warns_above = 3 * self._limit
        self.statistics = CompactionStatistics()

    def take_results(self, versions: Mapping[str, StateVersion], plan: JobPlan, now: EpochTime) -> VersionMap:
        """Return the versions with all completed compactions; called before an epoch. Does not block.

        Args:
            versions: The versions.
            plan: The plan with the subtasks of each step.
            now: The last epoch.
        """
        swapped = self.statistics.swapped
        current = self._swap_in(dict(versions))
        if self.statistics.swapped > swapped:
            # The next merge begins before the end of the epoch: it may be done by then.
            self._begin(current, plan, now)
        self._measure(current)
        return current

    def offer(self, versions: Mapping[str, StateVersion], plan: JobPlan, now: EpochTime) -> None:
        """Submit the compactions that are due; called after an epoch. Does not block.

        Args:
            versions: The versions after it.
            plan: The plan with the subtasks of each step.
            now: The epoch.
        """
        # After the first epoch the runs have the declarations of the program of this attempt.
        self._is_declared = True
        self._begin(versions, plan, now)

    def _begin(self, versions: Mapping[str, StateVersion], plan: JobPlan, now: EpochTime) -> None:
        if not self._enabled:
            return
        if self._paused:
            self._paused -= 1
            return
        for step in plan.keyed_steps():
            for runs in components(versions[step.uid].runs):
                self._offer(step, layers(runs), now)

    def _measure(self, versions: VersionMap) -> None:
        """Record in how many runs a key has to be looked up; warn when these are far too many, and each time twice."""
        deepest = max((depth(version.runs) for version in versions.values()), default=0)
        self.statistics.deepest = max(self.statistics.deepest, deepest)
        self.statistics.behind = max(0, deepest - self._limit) if self._enabled else 0
        if self.statistics.behind > self._warns_above:
            self._warns_above = 2 * self.statistics.behind
            logger.warning(
                "The compaction of state is behind: a key has to be looked up in %d runs (%s: %d). The job goes on, "
                "and lookups get slower. The driver's host has too few cores, or its storage is slow.",
                deepest,
                COMPACTION_MAX_RUNS.key,
                self._limit,
            )

    def merges_for_tasks(self, versions: Mapping[str, StateVersion], plan: JobPlan, now: EpochTime) -> TaskMerges:
        """Return the merges that the tasks of the next epoch carry out, because a file of its own costs a request.

        Args:
            versions: The versions before the epoch.
            plan: The plan with the subtasks of each step.
            now: The last epoch.
        """
        merges: dict[str, dict[int, TaskMerge]] = {}
        for step in plan.keyed_steps() if self._enabled and not self._paused else ():
            for runs in components(versions[step.uid].runs):
                found = layers(runs)
                count = self._count_for_task(step, found)
                if count:
                    subtask = subtask_of(found[-1].runs[0].key_groups[0], step.max_parallelism, step.parallelism)
                    time = now.processing_time if self._is_declared else None
                    merges.setdefault(step.uid, {})[subtask] = TaskMerge(count, time)
        return merges

    def merged_by_task(self, run: RunHandle | None) -> None:
        """Count a merge of a task; None if the runs could not be merged."""
        if run is None:
            self._count_failure()
            return
        self._failures = 0
        self.statistics.swapped += 1
        self.statistics.bytes_written += run.size

    @property
    def has_results(self) -> bool:
        """Whether `take_results` has something to return. Does not block."""
        return any(one.future.done() for one in self._pending)

    def live(self) -> list[str]:
        """Return the paths of files that no version names yet."""
        return [output.path for one in self._pending for output in one.plan.outputs]

    def close(self) -> None:
        """Cancel pending compactions; a second call has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        self._executor.close()
        self._pending.clear()
        if self.statistics.swapped or self.statistics.dropped:
            logger.info("%s", self.statistics)

    def _offer(self, step: Step, found: list[Layer], now: EpochTime) -> None:
        if len(found) >= self._limit // 2:
            self._executor.prepare()
        if self._count_for_task(step, found):
            return
        busy = self._busy_layers(found)
        window = choose_merge_above(found, busy, self._limit) if busy else choose_merge(found, self._limit)
        if window is None:
            return
        plan = self._plan(step, found, window, now)
        self._pending.append(_PendingCompaction(step.uid, plan, self._executor.submit(plan)))

    def _count_for_task(self, step: Step, found: list[Layer]) -> int:
        """Return how many of the newest layers the next run of a subtask should replace; 0 if a task merges nothing.

        A task merges only small runs, and only runs of exactly its own key groups.
        """
        newest = found[-1].runs[0]
        subtask = subtask_of(newest.key_groups[0], step.max_parallelism, step.parallelism)
        own = range_of(subtask, step.max_parallelism, step.parallelism)
        if not self._tasks_merge or newest.range != own:
            return 0
        busy, expected = self._busy_layers(found), [*found, found[-1].expected_next()]
        window = choose_merge_above(expected, busy, self._limit) if busy else choose_merge(expected, self._limit)
        if window is None or window.end < len(expected):
            return 0
        chosen = found[window.start :]
        is_own = all(len(layer.runs) == 1 and layer.runs[0].range == own for layer in chosen)
        return len(chosen) if is_own and sum(layer.size for layer in chosen) <= _LARGEST_IN_TASK else 0

    def _busy_layers(self, found: Iterable[Layer]) -> int:
        """Return the number of layers up to the newest one that is being merged."""
        busy = {run.path for one in self._pending for run in one.plan.inputs}
        return max((at for at, layer in enumerate(found, start=1) if layer.runs[0].path in busy), default=0)

    def _plan(self, step: Step, found: list[Layer], window: LayerRange, now: EpochTime) -> CompactionPlan:
        chosen = found[window.start : window.end]
        is_oldest = window.start == 0
        return CompactionPlan(
            self._root,
            tuple(run for layer in chosen for run in layer.runs),
            tuple(
                # By its name the leader may sweep it as soon as it is not `live` any more, when it is dropped.
                CompactionOutput(
                    f"{SHARED}/{FileName.new(self._token, now.epoch, 0, owner_of(step.uid), at).format()}", part
                )
                for at, part in enumerate(output_ranges(chosen, is_oldest, _ranges(step)))
            ),
            is_oldest,
            now.processing_time if self._is_declared else None,
            self._token,
            tuple(run for layer in found[window.end :] for run in layer.runs) if is_oldest else (),
            is_urgent=len(found) > self._limit,
        )

    def _swap_in(self, versions: dict[str, StateVersion]) -> dict[str, StateVersion]:
        done = [one for one in self._pending if one.future.done()]
        self._pending = [one for one in self._pending if not one.future.done()]
        for one in done:
            error = one.future.exception()
            if error is not None:
                self._failed(one, error)
                continue
            outputs = one.future.result()
            swapped = apply_compaction(versions[one.uid], one.plan.inputs, outputs) if one.uid in versions else None
            if swapped is None:
                self.statistics.dropped += 1
                continue
            versions[one.uid] = swapped
            self._failures = 0
            self.statistics.swapped += 1
            self.statistics.bytes_written += sum(run.size for run in outputs)
        return versions

    def _count_failure(self) -> None:
        self.statistics.dropped += 1
        self._failures += 1
        if self._failures >= _FAILURES_TO_PAUSE:
            self._paused = _PAUSED_EPOCHS

    def _failed(self, one: _PendingCompaction, error: BaseException) -> None:
        """Count a failure, which leaves the state as it was, in more runs; pause after several."""
        self._count_failure()
        logger.warning("%d runs of operator %r could not be compacted: %s", len(one.plan.inputs), one.uid, error)


def _ranges(step: Step) -> list[KeyGroupRange]:
    return [range_of(at, step.max_parallelism, step.parallelism) for at in range(step.parallelism)]
