"""What may be left on the disk when a job has ended: no more than its own promises say.

Faults end before a history does. From then on every deletion succeeds, so what was there before the last sweep began,
and nothing needs, is gone. What came later, such as the file of a task whose driver has died, waits for the next
leader. The ledger and the versions of the register are trimmed by whoever writes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NoReturn

from holdfast.storage.file_system import base_name, parent
from holdfast.storage.job_directory import SHARED, TASK_OWNED, FileName, checkpoint_id_of
from holdfast.storage.local import final_name
from holdfast.storage.register import RegisterState
from tests.simulation.disk import Disk
from tests.simulation.world import World

_VERSION = re.compile(r"v-([0-9]{20})")
_MARK = re.compile(r"([0-9]{9})\.(?:begun|done)")


class Leftovers:
    """When everything on the disk appeared, and what of it is too much at the end.

    Args:
        world: The world.
        disk: What there is.
        job_path: The job's directory.
        retained: How many checkpoints are retained.
        window: How many versions of the register are kept.

    Attributes:
        calm_since: Since when nothing fails.
        holes: Versions of the register that were written in the place of deleted ones.
    """

    def __init__(self, world: World, disk: Disk, job_path: str, retained: int, window: int) -> None:
        self._world, self._disk, self._job, self._retained, self._window = world, disk, job_path, retained, window
        self.calm_since = float("inf")
        self.holes: set[str] = set()
        self._appeared: dict[str, float] = {}
        self._late: set[str] = set()
        self._raised_at = self._moved_on_at = 0.0
        self._last_sweep_at = 0.0
        self._in_memory: frozenset[str] = frozenset()

    # What happens

    def seen(self, call: str, path: str) -> None:
        """Something has changed on the disk."""
        if call in ("create", "link", "rename", "mkdir"):
            self._appeared[path] = self._world.now
            (self._late.discard if self._world.on_behalf is None else self._late.add)(path)

    def moved_on(self, old: RegisterState, new: RegisterState, in_memory: Collection[str]) -> None:
        """The register has a new version.

        Args:
            old: The one before.
            new: The new one.
            in_memory: Paths of what whoever wrote it has in memory.
        """
        if len(new.checkpoints) > self._retained:
            self._fail(f"{len(new.checkpoints)} checkpoints are retained, not {self._retained}")
        if new.token > old.token:
            self._raised_at = self._world.now
        if new.terminal is not None and old.terminal is None:
            # A leader writes the register, sweeps, and writes how the job has ended.
            self._last_sweep_at, self._in_memory = self._moved_on_at, frozenset(map(base_name, in_memory))
        self._moved_on_at = self._world.now

    # The end

    def require_none(self, state: RegisterState, epoch: int, named: Collection[FileName], has_grace: bool) -> None:
        """The job has FINISHED: what nothing needs is gone.

        Args:
            state: What the register says.
            epoch: The last one that the last leader has completed, -1 if there is none.
            named: What the retained checkpoints name.
            has_grace: Whether what nothing needs stays for a while.
        """
        self._require_trimmed_register(state)
        self._require_trimmed_ledgers()
        if has_grace or self._last_sweep_at < self.calm_since:
            return
        for path in self._swept_files():
            name = FileName.parse(base_name(path))
            # The half of a file that is needed goes with it.
            whole = final_name(base_name(path)) or base_name(path)
            is_needless = name is not None and name not in named and whole not in self._in_memory
            is_judged = name is not None and (name.token < state.token or name.epoch <= epoch)
            if is_needless and is_judged and self._was_there(path, self._last_sweep_at):
                self._fail(f"{path} is left over")
        self._require_no_documents({pointer.checkpoint_id for pointer in state.checkpoints})

    def _swept_files(self) -> Iterator[str]:
        """Runs, staged rows and staged output: files whose names say whose they are."""
        yield from self._disk.files(f"{self._job}/{SHARED}")
        yield from self._disk.files(f"{self._job}/{TASK_OWNED}")
        for path in self._disk.files("/"):
            if "/.holdfast/" in path:
                yield path

    def _require_no_documents(self, retained: Collection[int]) -> None:
        for listed in self._disk.directory(self._job).entries:
            number = checkpoint_id_of(listed)
            if number is None or number in retained:
                continue
            path = f"{self._job}/{listed}"
            if all(self._was_there(one, self._last_sweep_at) for one in (path, *self._disk.files(path))):
                self._fail(f"{path} is left over, and only {sorted(retained)} are retained")

    def _require_trimmed_ledgers(self) -> None:
        """Who finishes an epoch forgets those below it."""
        marks = [path for path in self._disk.files("/") if "/ledger/" in path]
        for done in marks:
            # Who dies right after leaves the trimming to the next epoch.
            if not done.endswith(".done") or done in self._late or self._appeared.get(done, 0.0) <= self.calm_since:
                continue
            for path in marks:
                match = _MARK.fullmatch(final_name(base_name(path)) or base_name(path))
                is_below = match is not None and int(match[1]) < int(base_name(done)[:9])
                if parent(path) == parent(done) and is_below and self._was_there(path, self._appeared[done]):
                    self._fail(f"{path} is left over, and {base_name(done)} is there")

    def _require_trimmed_register(self, state: RegisterState) -> None:
        """Who writes a version deletes those behind the window; a new leader also those in holes, and half ones."""
        if self._raised_at < self.calm_since:
            return
        for path in self._disk.files(f"{self._job}/register"):
            temporary = final_name(base_name(path))
            match = _VERSION.fullmatch(temporary or base_name(path))
            if match is None:
                continue
            is_behind = int(match[1]) <= state.version - self._window
            is_known = path not in self.holes or self._was_there(path, self._raised_at)
            if (is_behind and temporary is None and is_known) or (temporary and self._was_there(path, self._raised_at)):
                self._fail(f"{path} is left over, and the register is at version {state.version}")

    def _was_there(self, path: str, when: float) -> bool:
        return self._appeared.get(path, 0.0) < when

    def _fail(self, what: str) -> NoReturn:
        self._world.fail(what)
