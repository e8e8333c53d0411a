"""The contract of state handle stores over a real ZooKeeper."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.errors import StorageError
from holdfast.ha.zookeeper.connection import NoAnswerError, ZooKeeperConnection
from holdfast.ha.zookeeper.leader_election import LatchNodes, latch_prefix
from holdfast.ha.zookeeper.state_handle_store import ZooKeeperStateHandleStore
from holdfast.storage.state_handle import RetrievableStateStorageHelper
from holdfast.testing.server.zookeeper import ZooKeeperServer
from holdfast.testing.state_handle_store_contract import (
    FaultMoment,
    ProcessDied,
    StateHandleStoreBackend,
    StateHandleStoreContract,
    Store,
)
from tests.examples import examples

pytestmark = pytest.mark.services


class StruckConnection(ZooKeeperConnection):
    """A connection of which one request goes wrong."""

    action: FaultMoment | Callable[[], None] | None = None
    after = 0

    def call(self, request: Callable[[], Any]) -> Any:
        is_write = getattr(request, "__name__", "") == "commit_async"
        if not is_write or self.action is None:
            return super().call(request)
        if self.after > 0:
            self.after -= 1
            return super().call(request)
        action, self.action = self.action, None
        if not isinstance(action, FaultMoment):
            action()
            return super().call(request)
        if action is FaultMoment.REFUSED:
            raise StorageError("refused by this test")
        if action is FaultMoment.DIED_BEFORE:
            raise ProcessDied
        if action is not FaultMoment.SILENT:
            super().call(request)
        if action is FaultMoment.DIED_AFTER:
            raise ProcessDied
        raise NoAnswerError("no answer in this test")


def connect(server: ZooKeeperServer) -> StruckConnection:
    connection = StruckConnection(
        server.connect_string, session_timeout=10, connection_timeout=10, retry_wait=0.001, max_retries=1
    )
    connection.start()
    return connection


class ZooKeeperBackend(StateHandleStoreBackend):
    has_locks = True
    overwrites_damage = False

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._roots = (f"/contract-{uuid.uuid4().hex}-{number}" for number in itertools.count())
        self._observer = connect(server)
        self._connections: dict[int, StruckConnection] = {}
        self._latch_node: str | None = None
        self.reset()

    def reset(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._root = next(self._roots)
        self._observer.ensure_path(f"{self._root}/latch")
        self._latch_node = None

    def close(self) -> None:
        self.reset()
        self._observer.close()

    def open(self, storage: RetrievableStateStorageHelper[str], lock_identity: str | None = None) -> Store:
        connection = connect(self._server)
        latch = LatchNodes(connection, f"{self._root}/latch")
        store = ZooKeeperStateHandleStore(
            connection, f"{self._root}/store", storage, lock_identity=lock_identity, latch=latch
        )
        self._connections[id(store)] = connection
        return store

    def crash(self, store: Store) -> None:
        self._connections.pop(id(store)).close()

    def elect(self, lock_identity: str) -> None:
        client = self._observer.client
        node = client.create(
            f"{self._root}/latch/{latch_prefix(uuid.uuid4().hex)}",
            lock_identity.encode(),
            ephemeral=True,
            sequence=True,
        )
        if self._latch_node is not None:
            client.delete(self._latch_node)
        self._latch_node = node

    def strike(self, store: Store, moment: FaultMoment, after: int = 0) -> None:
        self._set(store, moment, after)

    def interrupt(self, store: Store, action: Callable[[], None], after: int = 0) -> None:
        self._set(store, action, after)

    def spare(self, store: Store) -> None:
        self._set(store, None, 0)

    def _set(self, store: Store, action: FaultMoment | Callable[[], None] | None, after: int) -> None:
        connection = self._connections[id(store)]
        connection.action, connection.after = action, after

    def read_pointer(self, name: str) -> bytes | None:
        client = self._observer.client
        path = f"{self._root}/store/{name}"
        return client.get(path)[0] if client.exists(path) else None

    def write_pointer(self, name: str, content: bytes) -> None:
        self._observer.client.set(f"{self._root}/store/{name}", content)

    def pointer_names(self) -> list[str]:
        client = self._observer.client
        if not client.exists(f"{self._root}/store"):
            return []
        return sorted(client.get_children(f"{self._root}/store"))


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


class TestZooKeeperStateHandleStore(StateHandleStoreContract):
    machine_examples = examples(15)
    machine_steps = 20

    @pytest.fixture
    def store_backend(self, server: ZooKeeperServer) -> Iterator[StateHandleStoreBackend]:
        backend = ZooKeeperBackend(server)
        yield backend
        backend.close()
