"""A query server of the job, and the auditor who asks it: it never goes back, and never shows a mix."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.queryable import QueryableStateClient, exactly, newest
from holdfast.queryable.wire.errors import QueryError
from tests.chaos.bank import Bank
from tests.chaos.members import Member
from tests.programs.chaos_job import NAME

STATES: Final = ("seq", "total", "counts", "sums")


class Replica:
    """A process that answers from the checkpoints of the job, and is started again whenever it ends.

    Args:
        directory: Where the checkpoints are.
        options: Where the register is.
        port: Where it listens.
        log: What it says.
    """

    def __init__(self, directory: Path, options: Mapping[str, str], port: int, log: Path) -> None:
        self.port, self.log = port, log
        given = (f"-D{key}={value}" for key, value in options.items())
        self._command = [sys.executable, "-c", "from holdfast.cli import main; main()", "state-server", directory]
        self._command += ["--port", port, *given]
        self._process: subprocess.Popen[bytes] | None = None

    def supervise(self) -> None:
        """Start the process if it does not run."""
        if self._process is None or self._process.poll() is not None:
            with self.log.open("ab") as log:
                command = [str(part) for part in self._command]
                self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def members(self) -> list[Member]:
        """The process, if it runs."""
        return [Member("replica", self._process.pid)] if self._process and self._process.poll() is None else []

    def end(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


class ReplicaAuditor:
    """Asks for all state again and again, as somebody would who watches it.

    Args:
        bank: What the job is fed.
        client: Asks the replica.
        positions: How many payments the checkpoints have taken that others have read, by id.
    """

    def __init__(self, bank: Bank, client: QueryableStateClient, positions: Mapping[int, tuple[int, int]]) -> None:
        self._bank, self._client, self._positions = bank, client, positions
        self._checkpoint = 0
        self.position = 0
        """How many payments the newest answer knew."""
        self.answers = 0
        """How many there were, with one for each state."""

    def look(self) -> bool:
        """Ask, and judge the answer; returns whether there was one.

        Raises:
            AssertionError: It is older than one before, or not what the state was at any time.
        """
        try:
            number, state = self._ask()
        except QueryError:
            return False
        assert number >= self._checkpoint, f"the replica went back from checkpoint {self._checkpoint} to {number}"
        position = sum(state["seq"].values())
        assert state == vars(self._bank.books(position)), f"the replica shows of checkpoint {number} {state}"
        known = self._positions.get(number, (position, 0))[0]
        assert position == known, f"the replica shows {position} payments of checkpoint {number}, which has {known}"
        assert position >= self.position, f"the replica went back from {self.position} payments to {position}"
        self._checkpoint, self.position = number, position
        self.answers += 1
        return True

    def close(self) -> None:
        """End its connections."""
        self._client.close()

    def _ask(self) -> tuple[int, dict[str, dict[Any, Any]]]:
        """All states, and the checkpoint from which they all are."""
        consistency, state, number = newest(), {}, 0
        for name in STATES:
            with self._client.scan(NAME, name, consistency=consistency, deadline=1.0) as scan:
                rows = scan.to_table().to_pylist()
            number = scan.origin.checkpoint_id
            consistency = exactly(number)
            state[name] = {
                (row["key"], row["map_key"]) if "map_key" in row else row["key"]: row["value"] for row in rows
            }
        return number, state
