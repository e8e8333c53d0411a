"""A process that campaigns, and writes the register of a job while it leads; for tests and benchmarks of take-over.

``python -m tests.programs.ha_candidate '{"high-availability.type": ...}'`` prints one JSON object a line, of which
``event`` is started, granted (token), wrote (token, checkpoint_id, seconds), fenced, unknown, failed, revoked or error.
It ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from holdfast.errors import ConflictError, FencedError, PossibleInconsistentStateError, StorageError
from holdfast.ha import LeaderContender, LeaderElection, RegisterCheckpointRecoveryFactory
from holdfast.ha.services import create_high_availability_services
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage.register import CheckpointPointer, RegisterState, RegisterWriter

JOB: Final = JobID.from_name("take-over")
_PAUSE_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = 0.2
_ALL: Final = 1_000_000


def say(event: str, **fields: Any) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps({"event": event, "pid": os.getpid(), "at": time.time(), **fields}) + "\n")
    sys.stdout.flush()


class Candidate(LeaderContender):
    """Hands what it hears to the main thread, because callbacks must not block."""

    def __init__(self, election: LeaderElection, retained: int) -> None:
        self._election = election
        self._retained = retained
        self.session: uuid.UUID | None = None
        self.terms: queue.Queue[uuid.UUID | None] = queue.Queue()

    def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        """Begin a term."""
        self.session = leader_session_id
        self.terms.put(leader_session_id)

    def revoke_leadership(self) -> None:
        """End the term."""
        self.session = None
        say("revoked")

    def handle_error(self, error: BaseException) -> None:
        """Say so."""
        say("error", message=str(error))

    def lead(self, session: uuid.UUID, writer: RegisterWriter, first_id: int) -> None:
        """Write a checkpoint's pointer again and again, until somebody else leads."""
        say("granted", token=writer.token)
        self._election.confirm_leadership_async(session, f"pid:{os.getpid()}")
        checkpoint_id = first_id
        while self.session == session:
            began = time.monotonic()
            try:
                writer.write(completing(checkpoint_id, writer.token, self._retained))
            except ConflictError:
                continue
            except FencedError:
                say("fenced", token=writer.token)
                return
            except PossibleInconsistentStateError:
                say("unknown", token=writer.token, checkpoint_id=checkpoint_id)
                return
            except StorageError as error:
                say("failed", message=str(error))
                time.sleep(_RETRY_SECONDS)
                continue
            say("wrote", token=writer.token, checkpoint_id=checkpoint_id, seconds=time.monotonic() - began)
            checkpoint_id += 1
            time.sleep(_PAUSE_SECONDS)


def completing(checkpoint_id: int, token: int, retained: int) -> Any:
    """The change that adds a checkpoint to a register and lets go of the oldest."""

    def change(state: RegisterState) -> RegisterState:
        pointer = CheckpointPointer(checkpoint_id, f"chk-{checkpoint_id}-{token}/_metadata", 1, "0" * 64, token)
        return replace(
            state,
            checkpoints=(*state.checkpoints, pointer)[-retained:],
            next_checkpoint_id=max(state.next_checkpoint_id, checkpoint_id + 1),
        )

    return change


def main(configuration: Configuration, retained: int) -> None:
    """Campaign until standard input ends."""
    with ThreadPoolExecutor(1) as executor:
        services = create_high_availability_services(configuration, executor)
        election = services.get_dispatcher_leader_election()
        candidate = Candidate(election, retained)

        def wait_for_the_end() -> None:
            sys.stdin.read()
            candidate.session = None
            candidate.terms.put(None)

        threading.Thread(target=wait_for_the_end, daemon=True).start()
        election.start_leader_election(candidate)
        say("started")
        while (session := candidate.terms.get()) is not None:
            while candidate.session == session:
                try:
                    factory = services.get_checkpoint_recovery_factory()
                    assert isinstance(factory, RegisterCheckpointRecoveryFactory)
                    writer = factory.get_writer(JOB)
                except (StorageError, PossibleInconsistentStateError, ConflictError) as error:
                    say("failed", message=str(error))
                    time.sleep(_RETRY_SECONDS)
                    continue
                candidate.lead(session, writer, writer.state.next_checkpoint_id)
                if candidate.session == session:
                    # Fenced, or in doubt, and leading all the same: raise the token again after a while.
                    time.sleep(_RETRY_SECONDS)
        election.close()
        services.close()


class CandidateProcess:
    """Starts a candidate and reads what it says; for tests and benchmarks.

    Args:
        configuration: Of the process.
        retained: How many checkpoints the register keeps; all of them for whoever audits it.
    """

    def __init__(self, configuration: Mapping[str, Any], retained: int = _ALL) -> None:
        self.events: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.ha_candidate", json.dumps(dict(configuration)), str(retained)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def address(self) -> str:
        """What it publishes when it leads."""
        return f"pid:{self.pid}"

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def said(self, event: str) -> list[dict[str, Any]]:
        """What it said of one kind so far."""
        return [line for line in list(self.events) if line["event"] == event]

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """Let it end in good order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._lines(self._process.stdout):
            self.events.append(json.loads(line))

    @staticmethod
    def _lines(stream: Any) -> Iterator[str]:
        for line in stream:
            # A process that is killed in the middle of a line leaves half of one.
            if line.endswith("}\n"):
                yield line


if __name__ == "__main__":
    main(Configuration(json.loads(sys.argv[1])), int(sys.argv[2]) if len(sys.argv) > 2 else _ALL)
