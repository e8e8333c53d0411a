"""The contract of fenced registers over ConfigMaps, stopped at every single request, and what only they do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import (
    ConflictError,
    CorruptFileError,
    FencedError,
    FormatVersionError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.ha.kubernetes import KubeClient, KubernetesConfigMap, KubernetesRegister
from holdfast.ha.kubernetes.client import KubernetesConnection
from holdfast.kernel import fault
from holdfast.storage.register import FencedRegister
from holdfast.storage.state_handle import encode_document
from holdfast.testing.kubernetes.api_server import Fault, FaultKind, KubernetesApiServer
from tests.contract.register_contract import Gate, RegisterContract, RegisterSite, completing, ids
from tests.contract.removal_contract import RegisterRemovalContract
from tests.services.kubernetes.cluster import HastyClock, KubernetesCluster

pytestmark = pytest.mark.services

_numbers = itertools.count()


class GatedKubeClient(KubeClient):
    """Passes a gate before and after every request."""

    def __init__(self, connection: KubernetesConnection, **arguments: Any) -> None:
        super().__init__(connection, **arguments)
        self.gate: Gate | None = None

    def _gated(self, name: str, request: Callable[[], Any]) -> Any:
        gate = self.gate
        if gate is None:
            return request()
        gate(f"before {name}")
        answer = request()
        gate(f"after {name}")
        return answer

    def get_config_map(self, name: str) -> KubernetesConfigMap | None:
        found: KubernetesConfigMap | None = self._gated(
            "get", lambda: super(GatedKubeClient, self).get_config_map(name)
        )
        return found

    def create_config_map(self, config_map: KubernetesConfigMap) -> KubernetesConfigMap:
        made: KubernetesConfigMap = self._gated(
            "create", lambda: super(GatedKubeClient, self).create_config_map(config_map)
        )
        return made

    def replace_config_map(self, config_map: KubernetesConfigMap) -> KubernetesConfigMap:
        written: KubernetesConfigMap = self._gated(
            "update", lambda: super(GatedKubeClient, self).replace_config_map(config_map)
        )
        return written

    def delete_version(self, config_map: KubernetesConfigMap) -> None:
        self._gated("delete", lambda: super(GatedKubeClient, self).delete_version(config_map))


class ConfigMapSite(RegisterSite):
    """One register; leaders with a gate have a client of their own, because the others must not pass it."""

    def __init__(self, plain: KubeClient, gated: GatedKubeClient) -> None:
        self._plain, self._gated = plain, gated
        self._template = KubernetesConfigMap(f"register-{next(_numbers)}", labels={"app": "test"})
        self._gated.gate = None

    def open(self, gate: Gate | None = None) -> FencedRegister:
        if gate is None:
            return KubernetesRegister(self._plain, self._template)
        self._gated.gate = gate
        return KubernetesRegister(self._gated, self._template)

    def close(self) -> None:
        self._plain.delete_config_map(self._template.name)


class TestKubernetesRegister(RegisterContract, RegisterRemovalContract):
    ahead = (1, 2, 66)

    @pytest.fixture(scope="module")
    @staticmethod
    def clients(module_cluster: KubernetesCluster) -> tuple[KubeClient, GatedKubeClient]:
        return module_cluster.client(), module_cluster.client(GatedKubeClient, clock=HastyClock())

    @pytest.fixture
    def new_site(self, clients: tuple[KubeClient, GatedKubeClient]) -> Callable[[], RegisterSite]:
        return lambda: ConfigMapSite(*clients)


# What only this register does.


@pytest.fixture
def register(cluster: KubernetesCluster) -> KubernetesRegister:
    return KubernetesRegister(cluster.client(), KubernetesConfigMap("job", labels={"app": "test"}))


def test_people_can_read_it_with_kubectl(cluster: KubernetesCluster, register: KubernetesRegister) -> None:
    writer = register.raise_token("driver 1")
    for checkpoint_id in (1, 2, 42):
        writer.write(completing(checkpoint_id, token=writer.token, retained=2))
    found = cluster.map("job")
    assert found["metadata"]["labels"] == {"app": "test"}
    assert sorted(found["data"]) == [
        "checkpointID-0000000000000000002",
        "checkpointID-0000000000000000042",
        "counter",
        "register",
    ]
    assert found["data"]["counter"] == "43"
    assert json.loads(found["data"]["checkpointID-0000000000000000042"])["path"] == "chk-42/_metadata"
    assert json.loads(found["data"]["register"])["owner"] == "driver 1"


def test_what_else_is_in_the_config_map_stays(cluster: KubernetesCluster, register: KubernetesRegister) -> None:
    cluster.request("POST", cluster.path("configmaps"), {"metadata": {"name": "job"}, "data": {"note": "mine"}})
    writer = register.raise_token("driver 1")
    cluster.request(
        "PATCH",
        cluster.path("configmaps", "job"),
        {"data": {"more": "yours"}},
        content_type="application/merge-patch+json",
    )
    writer.write(completing(1))
    data = cluster.map("job")["data"]
    assert (data["note"], data["more"]) == ("mine", "yours")
    assert ids(register.read()) == [1]


def test_a_damaged_or_newer_register_is_refused_by_name(
    cluster: KubernetesCluster, register: KubernetesRegister
) -> None:
    register.raise_token("driver 1").write(completing(1))
    kind = "application/merge-patch+json"
    path = cluster.path("configmaps", "job")
    whole = cluster.map("job")["data"]["register"]
    cluster.request("PATCH", path, {"data": {"register": whole.replace("driver 1", "driver 2")}}, content_type=kind)
    with pytest.raises(CorruptFileError, match="ConfigMap job/register"):
        register.read()
    newer = encode_document("register", 99, {}).decode()
    cluster.request("PATCH", path, {"data": {"register": newer}}, content_type=kind)
    with pytest.raises(FormatVersionError, match="ConfigMap job/register"):
        register.raise_token("driver 2")
    cluster.request("PATCH", path, {"data": {"register": None}}, content_type=kind)
    with pytest.raises(CorruptFileError, match="has entries checkpointID-"):
        register.raise_token("driver 3")


def test_a_register_that_somebody_deleted_stops_its_leader(
    cluster: KubernetesCluster, register: KubernetesRegister
) -> None:
    writer = register.raise_token("driver 1")
    writer.write(completing(1))
    cluster.request("DELETE", cluster.path("configmaps", "job"))
    with pytest.raises(FencedError, match="'job' does not exist any more"):
        writer.write(completing(2))
    other = register.raise_token("driver 2")
    for _ in range(2):
        with pytest.raises(FencedError):
            writer.write(completing(3))
    assert ids(other.check()) == []


@pytest.mark.parametrize(
    "kind", [FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER, FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.LATE]
)
def test_a_broken_connection_is_found_out_about(
    server: KubernetesApiServer, register: KubernetesRegister, kind: FaultKind
) -> None:
    server.inject(Fault(kind, verb="create", name="", resource="configmaps", seconds=0.05))
    writer = register.raise_token("driver 1")
    for checkpoint_id in range(1, 6):
        server.inject(Fault(kind, verb="update", name="job", seconds=0.02 * checkpoint_id))
        writer.write(completing(checkpoint_id))
    assert server.pending_faults == 0
    assert ids(register.read()) == [1, 2, 3, 4, 5]
    assert register.read().version == 6


def test_a_server_that_stays_away_leaves_the_outcome_unknown(
    server: KubernetesApiServer, cluster: KubernetesCluster
) -> None:
    register = KubernetesRegister(cluster.client(max_retries=2, clock=HastyClock()), KubernetesConfigMap("job"))
    writer = register.raise_token("driver 1")
    server.inject(Fault(FaultKind.DROP_AFTER, verb="update", name="job"))
    server.inject(Fault(FaultKind.ERROR_BEFORE, verb="get", name="job", skip=1, times=100))
    with pytest.raises(PossibleInconsistentStateError):
        writer.write(completing(1))
    assert writer.has_ended
    server.clear_faults()
    assert ids(register.raise_token("driver 1 again").state) == [1]


def test_a_server_that_was_away_all_the_time_leaves_no_doubt(
    server: KubernetesApiServer, cluster: KubernetesCluster
) -> None:
    register = KubernetesRegister(cluster.client(max_retries=2, clock=HastyClock()), KubernetesConfigMap("job"))
    writer = register.raise_token("driver 1")
    server.stop()
    with pytest.raises(StorageError):
        writer.write(completing(1))
    server.restart()
    assert not writer.has_ended
    assert ids(writer.write(completing(1))) == [1]


def test_the_fault_points_of_pointer_writes_reach_it(register: KubernetesRegister) -> None:
    writer = register.raise_token("driver 1")
    fault.install("lost:pointer.write:1=raise")
    try:
        writer.write(completing(1))
    finally:
        fault.clear()
    assert ids(register.read()) == [1]


def test_two_who_create_it_at_once_get_two_tokens(cluster: KubernetesCluster) -> None:
    template = KubernetesConfigMap("job")
    first, second = cluster.client(), cluster.client(GatedKubeClient)
    rivals: list[Any] = []
    gate = Gate(2)
    second.gate = gate
    gate.arm(lambda: rivals.append(KubernetesRegister(first, template).raise_token("first")))
    writer = KubernetesRegister(second, template).raise_token("second")
    assert gate.passed[2] == "before get" or gate.passed[2] == "before create"
    assert (rivals[0].token, writer.token) == (1, 2)
    with pytest.raises(FencedError):
        rivals[0].write(completing(1))
    writer.write(lambda state: replace(state, terminal="FINISHED"))


def test_writers_of_other_entries_do_not_disturb(cluster: KubernetesCluster, register: KubernetesRegister) -> None:
    writer = register.raise_token("driver 1")
    other: KubeClient = cluster.client()
    for number in range(1, 20):
        other.check_and_update_config_map("job", lambda map: map.with_entries({"other": str(number)}))  # noqa: B023
        try:
            writer.write(completing(number))
        except ConflictError as error:  # pragma: no cover - would be a failure
            raise AssertionError("another entry's change counted as one of the register") from error
    assert len(ids(register.read())) == 19
