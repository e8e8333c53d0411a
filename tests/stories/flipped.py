"""A small checkpoint, whatever is read of it on a restore, and what becomes of that when a bit of it is another."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.recovery import retained
from holdfast.errors import HoldfastError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.backend.cache import StateCache
from holdfast.state.declaration.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.state.declaration.environment import TaskEnvironment
from holdfast.state.hashmap.keyed_backend import HashMapKeyedStateBackend
from holdfast.state.run.run_file import forget_runs, open_run
from holdfast.state.run.version import StateVersion
from tests.programs.written_job import WrittenJob

GROUPS = 8
KEYS = ("ada", "bob", "cy")
STATES = (
    ValueStateDescriptor("number", "bigint"),
    ListStateDescriptor("names", "string"),
    MapStateDescriptor("rates", "string", "double"),
)
KIBIBYTES = 1024
SECONDS = 2.0
"""Of the processor, that a look at one flipped bit may take; at a whole checkpoint it takes some milliseconds."""
MEBIBYTES = 64
"""Of memory that it may take; at a whole checkpoint it takes none that was not there before."""


@dataclass
class Flips:
    """What became of flipped bits.

    Attributes:
        refused: So many were refused.
        harmless: So many made no difference, because nobody looks at that file any more.
        seconds: The most time of the processor that one took.
        mebibytes: The most memory that one took.
    """

    refused: int = 0
    harmless: int = 0
    seconds: float = 0.0
    mebibytes: float = 0.0


class Small:
    """A job with one checkpoint of one operator with a state of each form.

    Attributes:
        values: What the states of each key are.
    """

    def __init__(self, root: Path) -> None:
        self._job = WrittenJob(root, list(STATES), max_parallelism=GROUPS, parallelism=1)
        for count in (1, 2):
            self._job.epoch_of([(key, _writing(count)) for key in KEYS])
        self._job.complete()
        self.values = self.read()

    def files(self) -> list[Path]:
        """What is read on a restore: the register, the document, the runs."""
        root = Path(self._job.directory.path)
        return sorted(path for path in root.rglob("*") if path.is_file())

    def read(self) -> dict[str, Any]:
        """Restore the newest checkpoint, check each byte of it, and read everything."""
        forget_runs()
        directory = self._job.directory
        [checkpoint] = retained.recover_all(directory, self._job.register.read())
        [operator] = checkpoint.metadata.operators
        for handle in operator.runs:
            open_run(directory.fs, directory.path, handle).verify()
        environment = TaskEnvironment(checkpoint.metadata.job_id, operator.uid, 0, 1, GROUPS)
        backend = HashMapKeyedStateBackend(
            environment, self._job.job_id, operator.uid, self._job._codec, GROUPS, KeyGroupRange(0, GROUPS - 1), None,
            StateCache(),
        )  # fmt: skip
        backend.open_version(StateVersion(operator.runs), directory.fs, directory.path)
        number, names, rates = (backend.get_partitioned_state(None, None, state) for state in STATES)
        found = {}
        for key in KEYS:
            backend.set_current_key(key)
            found[key] = (number.value(), list(names.get()), dict(rates.items()))
        backend.dispose()
        return found

    def flipped(self, path: Path, bits: Iterable[int]) -> Flips:
        """Flip one bit after the other of a file, and see that nobody believes it, and what looking at it costs."""
        whole, found = path.read_bytes(), Flips()
        with _bounded_room():
            try:
                for bit in bits:
                    place, worth = divmod(bit, 8)
                    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << worth]) + whole[place + 1 :])
                    self._look(path, f"bit {worth} of byte {place} of {path.name}", found)
            finally:
                path.write_bytes(whole)
        return found

    def _look(self, path: Path, what: str, found: Flips) -> None:
        _reset_peak()
        before, began = _kibibytes("VmRSS"), time.process_time()
        try:
            with _bounded_time(what):
                assert self.read() == self.values, f"{what} was believed"
            found.harmless += 1
        except HoldfastError as error:
            assert str(path) in str(error), f"{error!r} does not name {path}"
            found.refused += 1
        found.seconds = max(found.seconds, time.process_time() - began)
        more = (_kibibytes("VmHWM") - before) / KIBIBYTES
        assert more < MEBIBYTES, f"{what} takes {more} MiB of memory"
        found.mebibytes = max(found.mebibytes, more)


@contextmanager
def _bounded_time(what: str) -> Iterator[None]:
    """Ends what keeps the processor busy for longer; a test that sleeps has a limit of its own."""

    def too_long(number: int, frame: Any) -> None:
        raise AssertionError(f"{what} keeps the processor busy for {SECONDS} seconds")

    handler = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


@contextmanager
def _bounded_room() -> Iterator[None]:
    """Refuses room that nobody fills, which is no memory yet: a size in a file that is believed."""
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    most = (_kibibytes("VmData") + 4 * KIBIBYTES * MEBIBYTES) * KIBIBYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def _reset_peak() -> None:
    """Lets the kernel measure the most memory of this process anew."""
    Path("/proc/self/clear_refs").write_text("5")


def _kibibytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"\n{name}:")[2].split()[0])


def _writing(count: int) -> Any:
    def write(states: Any) -> None:
        states.number.update(count)
        states.names.add(f"n{count}")
        states.rates.put(f"r{count}", count / 2)

    return write
