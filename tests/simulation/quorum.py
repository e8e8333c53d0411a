"""A register in a service of its own, as ZooKeeper and Kubernetes have it: it outlives the disk's power failures.

Each request may be refused, lost on its way, answered too late or not at all, or asked twice by its client.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import ConflictError, PossibleInconsistentStateError, StorageError
from holdfast.storage.register import GENESIS, REGISTER_FORMAT, RegisterRecord
from holdfast.storage.versioned_document import VersionedDocument
from tests.simulation.weather import Weather


class Quorum:
    """What the servers hold.

    Args:
        weather: What goes wrong.
        moved_on: Called with each new version; an auditor.
    """

    def __init__(self, weather: Weather, moved_on: Callable[[RegisterRecord], None]) -> None:
        self.weather, self.moved_on = weather, moved_on
        self.newest = GENESIS.encode()

    def record(self) -> RegisterRecord:
        """The newest version."""
        return RegisterRecord.decode(self.newest, "quorum")


class QuorumDocument(VersionedDocument[RegisterRecord]):
    """The register as a client sees it."""

    def __init__(self, quorum: Quorum) -> None:
        super().__init__(REGISTER_FORMAT)
        self._quorum = quorum

    def read(self) -> RegisterRecord:
        try:
            self._quorum.weather.before_read("load", "quorum")
        except OSError as error:
            raise StorageError(f"the servers do not answer: {error}") from error
        return self._quorum.record()

    def _write_next(self, base: RegisterRecord, new: RegisterRecord) -> None:
        quorum = self._quorum
        refused: list[bool] = []

        def swap() -> None:
            if quorum.record().nonce != base.nonce:
                refused.append(True)
                return
            quorum.newest = new.encode()
            quorum.moved_on(new)

        try:
            quorum.weather.around("swap", "quorum", swap, lambda: None)
        except FileExistsError as error:
            raise ConflictError("it was asked twice, and the second answer is that it is there") from error
        except OSError as error:
            raise PossibleInconsistentStateError(f"the servers do not answer: {error}") from error
        if refused:
            raise ConflictError("the register is at another version already")
