"""Merging runs beside the epochs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import humanfriendly

from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange, range_of
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import owner_of
from holdfast.runtime.graph.plan import JobPlan, Step
from holdfast.state.compaction import compact
from holdfast.state.compaction_plan import (
    CompactionOutput,
    CompactionPlan,
    Layer,
    LayerRange,
    apply_compaction,
    choose_merge,
    choose_merge_above,
    components,
    depth,
    layers,
    output_ranges,
)
from holdfast.state.environment import COMPACTION_ENABLED, COMPACTION_EXECUTOR, COMPACTION_MAX_RUNS
from holdfast.state.run_file import RunHandle
from holdfast.state.version import StateVersion
from holdfast.storage.job_directory import SHARED, FileName
from holdfast.storage.object_store import s3_environment
from holdfast.storage.scheme import file_system_for

# Where compactions run: in a process of low priority beside the driver, or in a thread of it.
#
# The process is started when it is first needed, gets plans as lines of JSON and answers with lines of JSON, in a pipe
# of their own, because anything may be printed in a process. It ends when its input ends, so it does not outlive the
# driver. It is not made by `multiprocessing`, which would run the user's script again in it. If it dies, what it had to
# do fails, and it is started again for what comes next.

logger = get_logger(__name__)

_WORKER: Final = "holdfast.runtime.compaction_worker"
_PATIENCE: Final = 5.0
_IDLE: Final = 60.0
_STANDARD_ERROR: Final = 2

_Elsewhere = Callable[[Future[list[RunHandle]], CompactionPlan], None]


class CompactionExecutor(ABC):
    """Carries out compactions."""

    def prepare(self) -> None:  # noqa: B027 - a thread needs no time to start
        """Something will be submitted soon."""

    @abstractmethod
    def submit(self, plan: CompactionPlan) -> Future[list[RunHandle]]:
        """Carry out a plan some time; does not block."""

    @abstractmethod
    def close(self) -> None:
        """Give up what is under way."""


def create_compaction_executor(name: str) -> CompactionExecutor:
    """Return the executor that an option names.

    Raises:
        ConfigurationError: There is none of that name.
    """
    if name == "process":
        return ProcessCompactionExecutor()
    if name == "thread":
        return ThreadCompactionExecutor()
    raise ConfigurationError(f"state.compaction.executor is 'process' or 'thread', not {name!r}.")


class ThreadCompactionExecutor(CompactionExecutor):
    """A thread of this process."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "holdfast-compaction")

    def submit(self, plan: CompactionPlan) -> Future[list[RunHandle]]:
        """Carry out a plan after those before it."""
        return self._pool.submit(lambda: compact(plan, file_system_for(plan.root)))

    def close(self) -> None:
        """Give up what has not begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class ProcessCompactionExecutor(CompactionExecutor):
    """A process of low priority. One that has nothing to do is left to the next executor, because starting costs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._here: ThreadCompactionExecutor | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, None if none runs."""
        worker = self._worker
        return worker.pid if worker is not None and worker.is_alive() else None

    def prepare(self) -> None:
        """Start the process if it does not run; if it cannot be started, `submit` tells it."""
        with self._lock, suppress(OSError):
            self._running()

    def submit(self, plan: CompactionPlan) -> Future[list[RunHandle]]:
        """Carry out a plan after those before it."""
        with self._lock:
            try:
                return self._running().submit(plan, self._submit_here)
            except OSError as error:
                failed: Future[list[RunHandle]] = Future()
                failed.set_exception(StorageError(f"The process that compacts cannot be started: {error}."))
                return failed

    def close(self) -> None:
        """End the process if it is busy; what it has not written whole was never there."""
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
        """Carry out a plan for which classes of the user's script are needed, which only this process has."""
        with self._lock:
            if self._worker is None:
                future.set_exception(StorageError("The job has ended, nothing is compacted any more."))
                return
            if self._here is None:
                self._here = ThreadCompactionExecutor()
            done = self._here.submit(plan)
        done.add_done_callback(lambda one: _hand_on(one, future))


class _Worker:
    """One process that compacts, and the thread that reads its answers.

    Args:
        settings: What is added to the environment.
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
                # A signal for the driver's group, such as that of Ctrl-C, is the driver's to answer.
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
        """Carry out a plan after those before it, or hand it on if the process cannot."""
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
        """Kill the process; whoever waits for it is not told."""
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
        """Hand on answers until there are no more; then what the process still had to do has failed."""
        with os.fdopen(reading, "rb") as answers:
            for line in answers:
                if line.endswith(b"\n"):  # it may have been killed in the middle of one
                    self._hand_on(json.loads(line))
        code = self._process.wait()
        with self._lock:
            lost, self._waiting = list(self._waiting.values()), {}
        for future, _, _ in lost:
            future.set_exception(StorageError(f"The process that compacts has ended with code {code}."))

    def _hand_on(self, answer: dict[str, Any]) -> None:
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
    """The process, at most one, that its executor has left; it ends when nobody takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._timer: threading.Timer | None = None

    def give(self, worker: _Worker) -> None:
        """Keep a process that has nothing to do and is the only one, end any other."""
        with self._lock:
            if self._worker is None and worker.is_alive() and not worker.is_busy():
                self._worker = worker
                self._timer = threading.Timer(_IDLE, self._expire, [worker])
                self._timer.daemon = True
                self._timer.start()
                return
        worker.end()

    def take(self, settings: Mapping[str, str]) -> _Worker | None:
        """Return the process if it is there, alive, and has these settings."""
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


def _hand_on(done: Future[list[RunHandle]], future: Future[list[RunHandle]]) -> None:
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


# Compaction beside the epochs of a job: what is offered at the end of one epoch comes back before a later one.
#
# Nothing of it is in a task, and no epoch waits for it unless keys would have to be looked for in more runs than
# `state.compaction.max-runs`. What is written belongs to no version until it is swapped in, between two epochs, in the
# place of exactly what it was made of; if that is not there any more, the result is dropped. So a crash at any point
# loses work and nothing else:
#
# - a version that is restored names either the inputs or the output;
# - inputs stay for as long as a checkpoint names them, and outputs that are not swapped in yet are protected from the
#   sweeper as `live`;
# - a deposed leader's outputs are named by nothing, and go when the next leader sweeps.

_LONGEST_WAIT: Final = 60.0
_FAILURES_TO_PAUSE: Final = 3
_PAUSED_EPOCHS: Final = 50
_LEAST_RUNS: Final = 3


VersionMap = dict[str, StateVersion]


class EpochTime(NamedTuple):
    """An epoch.

    Attributes:
        epoch: Its number.
        processing_time: In milliseconds.
    """

    epoch: int
    processing_time: int


@dataclass(frozen=True)
class _UnderWay:
    """A compaction that was submitted."""

    uid: str
    plan: CompactionPlan
    future: Future[list[RunHandle]]


@dataclass
class CompactionStatistics:
    """What compaction has done in this attempt.

    Attributes:
        swapped: Compactions whose result was swapped in.
        dropped: Compactions whose result came too late, or that failed.
        bytes_written: Size of all that was swapped in.
        waited: Seconds that epochs have waited.
        deepest: The most runs in which a key had to be looked for in an epoch.
    """

    swapped: int = 0
    dropped: int = 0
    bytes_written: int = 0
    waited: float = 0.0
    deepest: int = 0

    def plus(self, other: CompactionStatistics) -> CompactionStatistics:
        """Both together."""
        return CompactionStatistics(
            self.swapped + other.swapped,
            self.dropped + other.dropped,
            self.bytes_written + other.bytes_written,
            self.waited + other.waited,
            max(self.deepest, other.deepest),
        )

    def __str__(self) -> str:
        size = humanfriendly.format_size(self.bytes_written, binary=True)
        return (
            f"compaction: {self.swapped} results of {size} in all were taken, {self.dropped} dropped; epochs waited "
            f"{self.waited:.1f} s for it, and looked for keys in at most {self.deepest} runs"
        )


class Compaction:
    """The compactions of one job attempt. Driven by the thread that runs the epochs.

    Args:
        root: The job directory.
        token: Fencing token of the attempt.
        configuration: Of the job.
        executor: Carries out plans; None takes the one that the configuration names.

    Raises:
        ConfigurationError: An option has a value that is not possible.
    """

    def __init__(
        self, root: str, token: int, configuration: Configuration, executor: CompactionExecutor | None = None
    ) -> None:
        self._root = root
        self._token = token
        self._limit = configuration.get(COMPACTION_MAX_RUNS)
        if self._limit < _LEAST_RUNS:
            raise ConfigurationError(f"{COMPACTION_MAX_RUNS.key} is at least {_LEAST_RUNS}, not {self._limit!r}.")
        self._enabled = configuration.get(COMPACTION_ENABLED)
        self._executor = executor or create_compaction_executor(configuration.get(COMPACTION_EXECUTOR))
        self._under_way: list[_UnderWay] = []
        self._failures = 0
        self._paused = 0
        self._is_declared = False
        self._is_closed = False
        self.statistics = CompactionStatistics()

    def take_results(self, versions: Mapping[str, StateVersion], plan: JobPlan, now: EpochTime) -> VersionMap:
        """Return the versions with all results that are there; called before an epoch.

        Blocks while keys would have to be looked for in too many runs and a compaction is about to change that.

        Args:
            versions: The versions.
            plan: Says which subtasks there are.
            now: The last epoch.
        """
        swapped = self.statistics.swapped
        current = self._swap_in(dict(versions))
        started = time.monotonic()
        if self.statistics.swapped > swapped:
            # The next merge does not wait for the end of the epoch: it may well be done by then.
            self._begin(current, plan, now)
        while self._too_deep(current):
            self._begin(current, plan, now)
            busy = [one.future for one in self._under_way]
            if not busy or not wait_for(busy, _LONGEST_WAIT, return_when="FIRST_COMPLETED").done:
                logger.warning("an epoch does not wait any longer for the compaction of its state")
                break
            current = self._swap_in(current)
        self.statistics.waited += time.monotonic() - started
        deepest = max((depth(version.runs) for version in current.values()), default=0)
        self.statistics.deepest = max(self.statistics.deepest, deepest)
        return current

    def offer(self, versions: Mapping[str, StateVersion], plan: JobPlan, now: EpochTime) -> None:
        """Begin what is due; called after an epoch. Does not block.

        Args:
            versions: The versions after it.
            plan: Says which subtasks there are.
            now: The epoch.
        """
        # From its first epoch on the runs say how the program of this attempt has declared its state.
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

    def live(self) -> list[str]:
        """Return the paths of files that no version names yet."""
        return [output.path for one in self._under_way for output in one.plan.outputs]

    def close(self) -> None:
        """Give up what is under way; again is no change."""
        if self._is_closed:
            return
        self._is_closed = True
        self._executor.close()
        self._under_way.clear()
        if self.statistics.swapped or self.statistics.dropped:
            logger.info("%s", self.statistics)

    def _offer(self, step: Step, found: list[Layer], now: EpochTime) -> None:
        if len(found) >= self._limit // 2:
            self._executor.prepare()
        busy = self._busy_layers(found)
        window = choose_merge_above(found, busy, self._limit) if busy else choose_merge(found, self._limit)
        if window is None:
            return
        plan = self._plan(step, found, window, now)
        self._under_way.append(_UnderWay(step.uid, plan, self._executor.submit(plan)))

    def _busy_layers(self, found: Iterable[Layer]) -> int:
        """Return how many layers are older than the newest one that is being merged, and this one."""
        busy = {run.path for one in self._under_way for run in one.plan.inputs}
        return max((at for at, layer in enumerate(found, start=1) if layer.runs[0].path in busy), default=0)

    def _plan(self, step: Step, found: list[Layer], window: LayerRange, now: EpochTime) -> CompactionPlan:
        chosen = found[window.start : window.end]
        is_oldest = window.start == 0
        return CompactionPlan(
            self._root,
            tuple(run for layer in chosen for run in layer.runs),
            tuple(
                # By its name the leader may sweep it as soon as it is not `live` any more: a result that is dropped.
                CompactionOutput(
                    f"{SHARED}/{FileName.new(self._token, now.epoch, 0, owner_of(step.uid), at).format()}", part
                )
                for at, part in enumerate(output_ranges(chosen, is_oldest, _ranges(step)))
            ),
            is_oldest,
            now.processing_time if self._is_declared else None,
            self._token,
            tuple(run for layer in found[window.end :] for run in layer.runs) if is_oldest else (),
        )

    def _swap_in(self, versions: dict[str, StateVersion]) -> dict[str, StateVersion]:
        done = [one for one in self._under_way if one.future.done()]
        self._under_way = [one for one in self._under_way if not one.future.done()]
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

    def _failed(self, one: _UnderWay, error: BaseException) -> None:
        """The state is what it was, only in more runs than it should be; try again later if it goes on like that."""
        self.statistics.dropped += 1
        self._failures += 1
        if self._failures >= _FAILURES_TO_PAUSE:
            self._paused = _PAUSED_EPOCHS
        logger.warning("%d runs of operator %r could not be compacted: %s", len(one.plan.inputs), one.uid, error)

    def _too_deep(self, versions: Mapping[str, StateVersion]) -> bool:
        is_possible = self._enabled and not self._paused
        return is_possible and any(depth(version.runs) > self._limit for version in versions.values())


def _ranges(step: Step) -> list[KeyGroupRange]:
    return [range_of(at, step.max_parallelism, step.parallelism) for at in range(step.parallelism)]
