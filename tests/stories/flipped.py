"""A small checkpoint, whatever is read of it on a restore, and what becomes of that when a bit of it is another."""

from __future__ import annotations

import resource
from collections.abc import Iterator
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
MEBIBYTE = 1024


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

    def flipped(self, path: Path, bits: Iterator[int]) -> tuple[int, int]:
        """Flip one bit after the other of a file, and see that nobody believes it.

        Returns:
            How many were refused, and how many made no difference because nobody looks at that file any more.
        """
        whole, before = path.read_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused = harmless = 0
        try:
            for bit in bits:
                place, worth = divmod(bit, 8)
                path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << worth]) + whole[place + 1 :])
                try:
                    assert self.read() == self.values, f"bit {worth} of byte {place} of {path.name} was believed"
                    harmless += 1
                except HoldfastError as error:
                    assert str(path) in str(error), f"{error!r} does not name {path}"
                    refused += 1
        finally:
            path.write_bytes(whole)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * MEBIBYTE
        return refused, harmless


def _writing(count: int) -> Any:
    def write(states: Any) -> None:
        states.number.update(count)
        states.names.add(f"n{count}")
        states.rates.put(f"r{count}", count / 2)

    return write
