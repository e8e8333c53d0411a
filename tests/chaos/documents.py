"""The auditor of checkpoints: what the register names is whole, right, and never goes back; not much else is there."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, read_by_pointer, root_of
from holdfast.cli.locate import Registers, directories_at
from holdfast.errors import HoldfastError
from holdfast.state_processor import SavepointReader
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import GENESIS, CheckpointPointer, FencedRegister, RegisterState
from tests.chaos.bank import ROWS, Auditor, Bank, by_key

MOST_FILES: Final = 600
"""That a job may keep, with what it will delete. A checkpoint leaves seven, and a file goes with the second sweep after
it was named last, so after forty checkpoints or a few more. Without sweeps fifty rounds would leave 900.
"""


class DocumentAuditor:
    """Reads the checkpoints that are retained, as whoever wants to restore one would.

    Args:
        bank: What the job is fed.
        output: What has been shown.
        disk: Where the job writes.
        options: Where the register is.
    """

    def __init__(self, bank: Bank, output: Auditor, disk: Path, options: Mapping[str, str]) -> None:
        self._bank, self._output, self._disk = bank, output, disk
        self._registers = Registers(f"{key}={value}" for key, value in options.items())
        self._found: tuple[JobDirectory, FencedRegister] | None = None
        self._lock = threading.Lock()
        self._newest = (0, 0, 0)
        self.position = (0, 0)
        """How many payments and rules the newest checkpoint has taken."""
        self.positions: dict[int, tuple[int, int]] = {}
        """The same of all that were read."""
        self.most_files = 0
        """That there have been at one time."""

    def look(self, again: bool = False) -> bool:
        """Read what is new, and judge it; returns whether there was something to judge.

        Args:
            again: Read also what was read before, and not only see that it is there.

        Raises:
            AssertionError: Something is missing, not as it must be, or older than before.
        """
        with self._lock:
            needed = self._output.shown, self._output.rules
            try:
                found = self._register()
                state = found[1].read() if found is not None else GENESIS.state
            except HoldfastError:
                return False  # its server is struck
            if found is None or state.newest is None:
                assert needed == (0, 0), f"{needed} payments and rules are shown, and no checkpoint has completed"
                return False
            self._found = found
            self._judge_register(state)
            is_read = [self._is_read(*found, state, pointer, again) for pointer in state.checkpoints]
            if is_read[-1]:
                assert _reaches(self.position, needed), f"{needed} were shown before a checkpoint had: {self.position}"
            self._count_files()
            return is_read[-1]

    def close(self) -> None:
        """End the connection to the register."""
        self._registers.close()

    def _register(self) -> tuple[JobDirectory, FencedRegister] | None:
        """That of the job; None while there is no job."""
        if self._found is not None:
            return self._found
        found = directories_at(str(self._disk / "checkpoints"))
        return (found[0], self._registers.of(found[0])) if found else None

    def _judge_register(self, state: RegisterState) -> None:
        assert state.newest is not None
        now = state.token, state.newest.checkpoint_id, state.next_checkpoint_id
        assert _reaches(now, self._newest), f"token, newest checkpoint and next one went from {self._newest} to {now}"
        self._newest = now

    def _is_read(
        self,
        directory: JobDirectory,
        register: FencedRegister,
        state: RegisterState,
        pointer: CheckpointPointer,
        again: bool,
    ) -> bool:
        """Whether a checkpoint could be read; if not, it must not be retained any more."""
        try:
            self._read(read_by_pointer(directory, state, pointer), again)
        except (HoldfastError, OSError) as error:
            assert not self._is_retained(register, pointer), f"a retained checkpoint cannot be read: {error}"
            return False
        return True

    def _is_retained(self, register: FencedRegister, pointer: CheckpointPointer) -> bool:
        try:
            return pointer in register.read().checkpoints
        except HoldfastError:
            return False  # nobody knows

    def _read(self, checkpoint: CompletedCheckpoint, again: bool) -> None:
        for operator in checkpoint.metadata.operators:
            for run in operator.runs:
                path = Path(root_of(checkpoint), run.path)
                if path.stat().st_size != run.size:
                    raise OSError(f"{path} has not its {run.size} bytes")
        number = checkpoint.metadata.checkpoint_id
        is_new = number not in self.positions
        if is_new or again:
            position = self._judge_state(SavepointReader(None, checkpoint))
            assert self.positions.setdefault(number, position) == position, f"checkpoint {number} has changed"
            if is_new:
                assert _reaches(position, self.position), (
                    f"checkpoint {number} went back from {self.position} to {position}"
                )
                self.position = position

    def _judge_state(self, reader: SavepointReader) -> tuple[int, int]:
        """How many payments and rules a checkpoint has taken; its state must be just that of so many."""
        number = reader.checkpoint.checkpoint_id
        state = {
            name: by_key(reader.read_keyed_state(uid, name).to_pylist())
            for uid, name in (("ledger", "seq"), ("ledger", "total"), ("windows", "counts"), ("windows", "sums"))
        }
        position = sum(state["seq"].values())
        assert position % ROWS == 0, f"checkpoint {number} has taken {position} payments, a part of a file"
        assert state == vars(self._bank.books(position)), f"after {position} payments checkpoint {number} has {state}"
        timers = {(row["key"], row["timestamp"]) for row in reader.read_timers("windows").to_pylist()}
        assert timers == set(state["counts"]), f"checkpoint {number} has the timers {timers}"
        rules = sorted(row["key"] for row in reader.read_broadcast_state("ledger", "rules").to_pylist())
        assert rules == list(range(len(rules))) and len(rules) <= self._bank.rules, f"{number} has the rules {rules}"
        return position, len(rules)

    def _count_files(self) -> None:
        """What the job keeps for itself; the output that it has shown is not its own any more."""
        outputs = [self._disk / name / ".holdfast" for name in ("entries", "windows")]
        places = [self._disk / "checkpoints", *outputs]
        found = sum(len(files) for place in places for _, _, files in os.walk(place))
        self.most_files = max(self.most_files, found)
        assert found <= MOST_FILES, f"the job keeps {found} files"


def _reaches(now: tuple[int, ...], before: tuple[int, ...]) -> bool:
    return all(new >= old for new, old in zip(now, before, strict=True))
