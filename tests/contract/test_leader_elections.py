"""The contract of leader elections over memory and over files."""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConflictError, StorageError
from holdfast.ha.embedded import EmbeddedElection, EmbeddedLeaderElectionDriverFactory, EmbeddedLeaderRetrievalDriver
from holdfast.ha.leader_election import LeaderElectionDriverFactory, LeaderInformation, LeaderRetrievalDriverFactory
from holdfast.ha.lease import LeaseTiming
from holdfast.ha.shared_directory import (
    FileSystemLeaderElectionDriverFactory,
    FileSystemLeaderRetrievalDriver,
    LeaderLease,
    LeaseDocument,
    information_of,
)
from holdfast.kernel.clock import SystemClock
from holdfast.storage.local import LocalFileSystem
from holdfast.testing.leader_election_contract import ElectionBackend, ElectionProcess, LeaderElectionContract

# Long enough that a busy machine deposes nobody.
TIMING = LeaseTiming(lease_duration=3.0, renew_deadline=2.4, retry_period=0.2)


class EmbeddedProcess(ElectionProcess):
    def __init__(self, election: EmbeddedElection) -> None:
        self._election = election
        self._identity = str(uuid.uuid4())

    @property
    def driver_factory(self) -> LeaderElectionDriverFactory:
        return EmbeddedLeaderElectionDriverFactory(self._election, self._identity)

    def retrieval_driver_factory(self, component_id: str) -> LeaderRetrievalDriverFactory:
        return partial(EmbeddedLeaderRetrievalDriver, self._election, component_id)

    def cut_off(self) -> None:
        raise AssertionError("contenders of one process cannot be cut off")

    def mend(self) -> None:
        pass

    def close(self) -> None:
        pass


class EmbeddedBackend(ElectionBackend):
    can_cut_off = False

    def __init__(self) -> None:
        self.election = EmbeddedElection()

    def new_process(self) -> ElectionProcess:
        return EmbeddedProcess(self.election)

    def write_information(self, component_id: str, information: LeaderInformation) -> None:
        self.election.write(component_id, information)

    def read_information(self, component_id: str) -> LeaderInformation:
        return self.election.register.for_component_id_or_empty(component_id)


class CutOffFileSystem(LocalFileSystem):
    """A mount whose server goes away."""

    def __init__(self) -> None:
        self.is_away = False

    def list_names(self, path: str) -> list[str]:
        self._check()
        return super().list_names(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self._check()
        return super().read(path, offset, length)

    def create_exclusive(self, path: str, data: bytes) -> None:
        self._check()
        super().create_exclusive(path, data)

    def exists(self, path: str) -> bool:
        self._check()
        return super().exists(path)

    def delete(self, path: str) -> bool:
        self._check()
        return super().delete(path)

    def _check(self) -> None:
        if self.is_away:
            raise StorageError("The server of this test is away.")


class MonotonicClock(SystemClock):
    """Wall clocks jump, and those of two machines differ: nobody may ask for one."""

    def now_ms(self) -> int:
        raise AssertionError("leader election asked for the time of day")


class FileSystemProcess(ElectionProcess):
    def __init__(self, directory: str) -> None:
        self._clock = MonotonicClock()
        self._fs = CutOffFileSystem()
        self._lease = LeaseDocument(self._fs, directory)
        self._identity = str(uuid.uuid4())

    @property
    def driver_factory(self) -> LeaderElectionDriverFactory:
        return FileSystemLeaderElectionDriverFactory(self._lease, self._identity, TIMING, self._clock)

    def retrieval_driver_factory(self, component_id: str) -> LeaderRetrievalDriverFactory:
        return partial(
            FileSystemLeaderRetrievalDriver, self._lease, component_id, TIMING.retry_period, clock=self._clock
        )

    def cut_off(self) -> None:
        self._fs.is_away = True

    def mend(self) -> None:
        self._fs.is_away = False

    def close(self) -> None:
        pass


class FileSystemBackend(ElectionBackend):
    def __init__(self, directory: Path) -> None:
        self._directory = str(directory / "leader")
        self._lease = LeaseDocument(LocalFileSystem(), self._directory)

    def new_process(self) -> ElectionProcess:
        return FileSystemProcess(self._directory)

    def write_information(self, component_id: str, information: LeaderInformation) -> None:
        while True:
            base = self._lease.read()
            lease = base.body
            assert lease is not None
            changed: dict[str, Any] = {**lease.to_json()}
            changed["information"][component_id] = information.encode()
            with suppress(ConflictError):  # the leader renews its lease all the time
                self._lease.replace(base, base.successor(LeaderLease.from_json(changed)))
                return

    def read_information(self, component_id: str) -> LeaderInformation:
        return information_of(self._lease.read().body).for_component_id_or_empty(component_id)


class TestEmbeddedElection(LeaderElectionContract):
    @pytest.fixture
    def election_backend(self) -> Iterator[ElectionBackend]:
        yield EmbeddedBackend()


class TestFileSystemElection(LeaderElectionContract):
    @pytest.fixture
    def election_backend(self, tmp_path: Path) -> Iterator[ElectionBackend]:
        yield FileSystemBackend(tmp_path)
