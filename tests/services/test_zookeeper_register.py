"""The contract of fenced registers over a real ZooKeeper, stopped at every single request, and what only it does."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from holdfast.errors import CorruptFileError, FencedError, FormatVersionError, PossibleInconsistentStateError
from holdfast.ha.zookeeper.connection import NoAnswerError, ZooKeeperConnection
from holdfast.ha.zookeeper.document import ZooKeeperRegister
from holdfast.storage.register import FencedRegister
from holdfast.storage.state_handle import encode_document
from holdfast.testing.server.tcp_proxy import TcpProxy
from holdfast.testing.server.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, expire_session
from tests.contract.register_contract import Gate, RegisterContract, RegisterSite, completing, ids
from tests.contract.removal_contract import RegisterRemovalContract

pytestmark = pytest.mark.services

_numbers = itertools.count()


class GatedConnection(ZooKeeperConnection):
    """Passes a gate before and after every request."""

    gate: Gate | None = None

    def call(self, request: Callable[[], Any]) -> Any:
        if self.gate is None:
            return super().call(request)
        # What the suite raises there stands for a request, or an answer, that got lost.
        try:
            self.gate("before a request")
            answer = super().call(request)
            self.gate("after a request")
        except PossibleInconsistentStateError as error:
            raise NoAnswerError(str(error)) from error
        return answer


def connect(address: str, kind: type[ZooKeeperConnection] = ZooKeeperConnection, **changes: Any) -> Any:
    arguments: dict[str, Any] = {"session_timeout": 10, "connection_timeout": 5, "retry_wait": 0.001, "max_retries": 2}
    connection = kind(address, **{**arguments, **changes})
    connection.start()
    return connection


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="module")
def plain(server: ZooKeeperServer) -> Iterator[ZooKeeperConnection]:
    connection = connect(server.address)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def gated(server: ZooKeeperServer) -> Iterator[GatedConnection]:
    connection = connect(server.address, GatedConnection, max_retries=0)
    yield connection
    connection.close()


class ZooKeeperSite(RegisterSite):
    def __init__(self, plain: ZooKeeperConnection, gated: GatedConnection) -> None:
        self._plain, self._gated = plain, gated
        self._path = f"/registers/job-{next(_numbers)}/register"
        self._gated.gate = None

    def open(self, gate: Gate | None = None) -> FencedRegister:
        if gate is None:
            return ZooKeeperRegister(self._plain, self._path)
        self._gated.gate = gate
        return ZooKeeperRegister(self._gated, self._path)

    def close(self) -> None:
        with suppress(NoNodeError):
            self._plain.client.delete(self._path.rpartition("/")[0], recursive=True)


class TestZooKeeperRegister(RegisterContract, RegisterRemovalContract):
    ahead = (1, 2, 66)

    @pytest.fixture
    def new_site(self, plain: ZooKeeperConnection, gated: GatedConnection) -> Callable[[], RegisterSite]:
        return lambda: ZooKeeperSite(plain, gated)


@pytest.fixture
def path() -> str:
    return f"/flink/{uuid.uuid4().hex}/jobs/one/register"


@pytest.mark.parametrize("looks_before_it_writes", [False, True])
def test_a_removed_and_recreated_register_is_another_one(
    plain: ZooKeeperConnection, path: str, looks_before_it_writes: bool
) -> None:
    register = ZooKeeperRegister(plain, path)
    old = register.raise_token("old")
    old.write(completing(1))
    plain.client.delete(path.rpartition("/")[0], recursive=True)
    new = ZooKeeperRegister(plain, path).raise_token("new")
    if looks_before_it_writes:
        register.read()
    assert ids(new.write(completing(7))) == [7]  # the same version numbers as those that the old leader knows
    with pytest.raises(FencedError):
        old.write(completing(2))
    assert ids(ZooKeeperRegister(plain, path).read()) == [7]


def test_damage_and_newer_versions_are_refused_by_name(plain: ZooKeeperConnection, path: str) -> None:
    register = ZooKeeperRegister(plain, path)
    register.raise_token("driver 1").write(completing(1))
    (child,) = plain.client.get_children(path)
    plain.client.set(f"{path}/{child}", b"not a register")
    with pytest.raises(CorruptFileError, match=child):
        register.read()
    plain.client.set(f"{path}/{child}", encode_document("register", 99, {}))
    with pytest.raises(FormatVersionError, match=child):
        register.raise_token("driver 2")


def test_an_answer_that_the_network_loses_is_found_out_about(server: ZooKeeperServer, path: str) -> None:
    with TcpProxy("127.0.0.1", server.port) as proxy:
        connection = connect(proxy.address, retry_wait=0.05)
        writer = ZooKeeperRegister(connection, path).raise_token("driver 1")
        for checkpoint_id in range(1, 6):
            proxy.lose_next_answer()
            writer.write(completing(checkpoint_id))
        assert ids(ZooKeeperRegister(connection, path).read()) == [1, 2, 3, 4, 5]
        assert writer.state.version == 6
        connection.close()


def test_a_lease_outlives_the_session(plain: ZooKeeperConnection, server: ZooKeeperServer, path: str) -> None:
    """Losing the session is not losing the job: nobody raised the token."""
    connection = connect(server.address, retry_wait=0.2, max_retries=5)
    writer = ZooKeeperRegister(connection, path).raise_token("driver 1")
    expire_session(connection.client)
    writer.write(completing(1))
    assert ids(ZooKeeperRegister(plain, path).read()) == [1]
    connection.close()


def test_a_leader_that_is_cut_off_does_not_know_and_deletes_nothing(server: ZooKeeperServer, path: str) -> None:
    with TcpProxy("127.0.0.1", server.port) as proxy:
        connection = connect(proxy.address, connection_timeout=0.5, max_retries=1)
        writer = ZooKeeperRegister(connection, path).raise_token("driver 1")
        proxy.lose_answers()
        with pytest.raises(PossibleInconsistentStateError):
            writer.write(completing(1))
        assert writer.has_ended
        proxy.mend()
        connection.close()


def test_an_ensemble_that_loses_its_leader_loses_no_write(path: str) -> None:
    with ZooKeeperEnsemble(tick_ms=300) as ensemble:
        connection = connect(ensemble.connect_string, connection_timeout=10, retry_wait=0.2, max_retries=8)
        writer = ZooKeeperRegister(connection, path).raise_token("driver 1")
        for checkpoint_id in range(1, 61):
            if checkpoint_id == 20:
                killed = ensemble.kill_leader()
            if checkpoint_id == 40:
                killed.start()
                ensemble.kill_leader()
            writer.write(completing(checkpoint_id, token=writer.token))
        assert ids(ZooKeeperRegister(connection, path).read()) == list(range(1, 61))
        assert writer.state.version == 61, "each was written once"
        connection.close()


def test_a_register_of_which_half_was_deleted_was_removed(plain: ZooKeeperConnection, path: str) -> None:
    register = ZooKeeperRegister(plain, path)
    old = register.raise_token("old")
    old.write(completing(1))
    for node in plain.client.get_children(path):
        plain.client.delete(f"{path}/{node}")
    assert register.read().version == 0
    assert register.read().checkpoints == ()
    new = ZooKeeperRegister(plain, path).raise_token("new")
    assert ids(new.write(completing(7))) == [7]
    with pytest.raises(FencedError):
        old.write(completing(2))
    assert ids(new.check()) == [7]


def test_the_half_that_is_left_of_a_register_is_removed(plain: ZooKeeperConnection, path: str) -> None:
    register = ZooKeeperRegister(plain, path)
    register.raise_token("old")
    for node in plain.client.get_children(path):
        plain.client.delete(f"{path}/{node}")
    assert register.remove()
    assert plain.client.exists(path) is None
