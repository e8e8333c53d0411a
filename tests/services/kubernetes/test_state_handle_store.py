"""The contract of state handle stores over ConfigMaps, and what only they do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import (
    AlreadyExistError,
    FencedError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.ha.kubernetes import LEADER_ANNOTATION, KubeClient, KubernetesConfigMap, KubernetesStateHandleStore
from holdfast.ha.kubernetes.config_map import LeaseRecord
from holdfast.storage.state_handle import RetrievableStateStorageHelper
from holdfast.testing.kubernetes.api_server import Fault, FaultKind, KubernetesApiServer
from holdfast.testing.leader_election_contract import eventually
from holdfast.testing.state_handle_store_contract import (
    FaultMoment,
    FlakyStorage,
    StateHandleStoreBackend,
    StateHandleStoreContract,
    Store,
    fail_storage,
)
from tests.examples import examples
from tests.services.kubernetes.cluster import HastyClock, KubernetesCluster, StruckKubeClient

pytestmark = pytest.mark.services

_numbers = itertools.count()
FOREIGN = "org.apache.flink.k8s.leader.dispatcher"


def own_key(key: str) -> bool:
    return not key.startswith("org.apache")


class ConfigMapBackend(StateHandleStoreBackend):
    """Each process has a client of its own; all work on one ConfigMap, in which a foreign entry stands as well."""

    compares_versions = False

    def __init__(self, cluster: KubernetesCluster, *, lasting: bool = False) -> None:
        self._cluster = cluster
        self._lasting = lasting
        self._admin: KubeClient = cluster.client()
        self._stores: dict[Store, StruckKubeClient] = {}
        self._pool: list[StruckKubeClient] = []
        self.reset()

    def reset(self) -> None:
        self.name = f"store-{next(_numbers)}"
        self._pool.extend(self._stores.values())
        self._stores.clear()
        self._admin.create_config_map(KubernetesConfigMap(self.name, {FOREIGN: "foreign"}))

    def open(self, storage: RetrievableStateStorageHelper[str], lock_identity: str | None = None) -> Store:
        if self._pool:
            client = self._pool.pop()
        else:
            client = self._cluster.client(StruckKubeClient, lasting=self._lasting, max_retries=3, clock=HastyClock())
        client.spare()
        store: Store = KubernetesStateHandleStore(client, self.name, storage, own_key, lock_identity)
        self._stores[store] = client
        return store

    def crash(self, store: Store) -> None:
        self._stores[store].spare()

    def elect(self, lock_identity: str) -> None:
        text = LeaseRecord(lock_identity, 15).encode()
        self._admin.check_and_update_config_map(self.name, lambda map: map.with_annotation(LEADER_ANNOTATION, text))

    def strike(self, store: Store, moment: FaultMoment, after: int = 0) -> None:
        client = self._stores[store]
        client.moment, client.after = moment, after

    def interrupt(self, store: Store, action: Callable[[], None], after: int = 0) -> None:
        client = self._stores[store]
        client.interruption, client.after = action, after

    def spare(self, store: Store) -> None:
        self._stores[store].spare()

    def _data(self) -> dict[str, str]:
        found = self._admin.get_config_map(self.name)
        assert found is not None
        return found.data

    def read_pointer(self, name: str) -> bytes | None:
        text = self._data().get(name)
        return None if text is None else text.encode("latin-1")

    def write_pointer(self, name: str, content: bytes) -> None:
        text = content.decode("latin-1")
        self._admin.check_and_update_config_map(self.name, lambda map: map.with_entries({name: text}))

    def pointer_names(self) -> list[str]:
        data = self._data()
        assert data[FOREIGN] == "foreign"
        return sorted(key for key in data if own_key(key))


@pytest.fixture(scope="module")
def answering(module_cluster: KubernetesCluster) -> ConfigMapBackend:
    return ConfigMapBackend(module_cluster)


@pytest.fixture(scope="module")
def falling_silent(module_cluster: KubernetesCluster) -> ConfigMapBackend:
    return ConfigMapBackend(module_cluster, lasting=True)


class TestKubernetesStateHandleStore(StateHandleStoreContract):
    """The server answers again at once: what became of a write is found out."""

    machine_examples = examples(25)

    @pytest.fixture
    def store_backend(self, answering: ConfigMapBackend) -> StateHandleStoreBackend:
        answering.reset()
        return answering


class TestKubernetesStateHandleStoreWhileTheServerStaysAway(StateHandleStoreContract):
    """The server stays away after a lost answer: what became of a write stays unknown."""

    machine_examples = examples(25)

    @pytest.fixture
    def store_backend(self, falling_silent: ConfigMapBackend) -> StateHandleStoreBackend:
        falling_silent.reset()
        return falling_silent


# What only this store does.


@pytest.fixture
def storage(tmp_path: Path) -> FlakyStorage:
    return FlakyStorage(tmp_path / "states")


@pytest.fixture
def store(cluster: KubernetesCluster, storage: FlakyStorage) -> Store:
    client: KubeClient = cluster.client()
    client.create_config_map(KubernetesConfigMap("plans"))
    return KubernetesStateHandleStore(client, "plans", storage, lambda key: key.startswith("executionPlan-"))


def data_of(cluster: KubernetesCluster) -> dict[str, Any]:
    return dict(cluster.map("plans").get("data", {}))


def test_only_keys_that_pass_the_filter_belong_to_the_store(cluster: KubernetesCluster, store: Store) -> None:
    store.add_and_lock("executionPlan-1", "plan")
    patch = {"data": {"counter": "7", FOREIGN: "somebody"}}
    cluster.request("PATCH", cluster.path("configmaps", "plans"), patch, content_type="application/merge-patch+json")
    assert store.get_all_handles() == ["executionPlan-1"]
    assert [name for _, name in store.get_all_and_lock()] == ["executionPlan-1"]
    store.clear_entries()
    assert data_of(cluster) == {"counter": "7", FOREIGN: "somebody"}


def test_the_version_of_an_entry_is_that_of_the_whole_config_map(cluster: KubernetesCluster, store: Store) -> None:
    assert not store.exists("executionPlan-1").is_existing()
    store.add_and_lock("executionPlan-1", "plan")
    assert store.exists("executionPlan-1").get_value() == cluster.map("plans")["metadata"]["resourceVersion"]


def test_what_others_put_on_the_config_map_survives_every_change(cluster: KubernetesCluster, store: Store) -> None:
    patch = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}, "finalizers": ["example.com/wait"]},
        "binaryData": {"blob": "AAEC"},
    }
    cluster.request("PATCH", cluster.path("configmaps", "plans"), patch, content_type="application/merge-patch+json")
    store.add_and_lock("executionPlan-1", "plan")
    store.release_and_try_remove("executionPlan-1")
    left = cluster.map("plans")
    assert left["metadata"]["labels"] == {"team": "a"}
    assert left["metadata"]["annotations"] == {"note": "b"}
    assert left["metadata"]["finalizers"] == ["example.com/wait"]
    assert left["binaryData"] == {"blob": "AAEC"}
    free = {"metadata": {"finalizers": None}}
    cluster.request("PATCH", cluster.path("configmaps", "plans"), free, content_type="application/merge-patch+json")


def test_a_config_map_that_somebody_deleted_is_an_error_and_not_an_absent_entry(
    cluster: KubernetesCluster, storage: FlakyStorage, store: Store
) -> None:
    store.add_and_lock("executionPlan-1", "plan")
    cluster.request("DELETE", cluster.path("configmaps", "plans"))
    for action in (
        lambda: store.exists("executionPlan-1"),
        lambda: store.get_and_lock("executionPlan-1"),
        lambda: store.get_all_handles(),
        lambda: store.add_and_lock("executionPlan-2", "plan"),
        lambda: store.replace("executionPlan-1", store.exists("executionPlan-1"), "plan"),
        lambda: store.release_and_try_remove("executionPlan-1"),
        lambda: store.clear_entries(),
    ):
        with pytest.raises(StorageError, match="'plans' does not exist"):
            action()
    assert store.get_all_and_lock() == []
    assert len(storage.files) == 1


def test_replacing_a_half_deleted_entry_finishes_the_deletion(
    cluster: KubernetesCluster, storage: FlakyStorage, store: Store
) -> None:
    store.add_and_lock("executionPlan-1", "plan")
    storage.before_discard = fail_storage
    with pytest.raises(StorageError):
        store.release_and_try_remove("executionPlan-1")
    storage.spare()
    with pytest.raises(NotExistError):
        store.replace("executionPlan-1", store.exists("executionPlan-1"), "other")
    assert data_of(cluster) == {}
    assert storage.files == []


def test_a_state_too_large_for_its_config_map_is_refused_and_discarded(
    cluster: KubernetesCluster, storage: FlakyStorage, store: Store
) -> None:
    filler = {"data": {"filler": "x" * (1024 * 1024 - 64)}}
    cluster.request("PATCH", cluster.path("configmaps", "plans"), filler, content_type="application/merge-patch+json")
    with pytest.raises(StorageError, match="Too long"):
        store.add_and_lock("executionPlan-1", "plan")
    assert storage.files == []


def test_names_that_are_no_keys_of_a_config_map_are_refused(storage: FlakyStorage, store: Store) -> None:
    for name in ("executionPlan-a/b", "executionPlan- ", "executionPlan-" + "x" * 300):
        with pytest.raises(StorageError, match="invalid"):
            store.add_and_lock(name, "plan")
    assert storage.files == []


# Requests that fail on their way; only the double can do that.


@pytest.mark.parametrize(
    "kind", [FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER, FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER]
)
def test_a_broken_connection_is_found_out_about(
    server: KubernetesApiServer, cluster: KubernetesCluster, storage: FlakyStorage, store: Store, kind: FaultKind
) -> None:
    for name in ("executionPlan-1", "executionPlan-2"):
        server.inject(Fault(kind, verb="update", name="plans"))
        store.add_and_lock(name, "plan")
    server.inject(Fault(kind, verb="update", name="plans"))
    store.replace("executionPlan-1", store.exists("executionPlan-1"), "other plan")
    assert store.get_and_lock("executionPlan-1").retrieve_state() == "other plan"
    server.inject(Fault(kind, verb="update", name="plans"))
    assert store.release_and_try_remove("executionPlan-2") is True
    assert server.pending_faults == 0
    assert len(storage.files) == 1
    assert list(data_of(cluster)) == ["executionPlan-1"]


def test_a_write_that_comes_late_is_either_found_or_refused(
    server: KubernetesApiServer, cluster: KubernetesCluster, storage: FlakyStorage, store: Store
) -> None:
    """The connection breaks, and the request is carried out a little later, between the tries or after them."""
    for number, seconds in enumerate((0.0, 0.02, 0.05, 0.1, 0.3)):
        name = f"executionPlan-{number}"
        server.inject(Fault(FaultKind.LATE, verb="update", name="plans", seconds=seconds))
        store.add_and_lock(name, name)
        assert store.get_and_lock(name).retrieve_state() == name
    assert len(storage.files) == 5
    assert len(data_of(cluster)) == 5


def test_when_the_server_stays_away_nothing_is_discarded(
    server: KubernetesApiServer, cluster: KubernetesCluster, storage: FlakyStorage
) -> None:
    client: KubeClient = cluster.client(max_retries=3)
    client.create_config_map(KubernetesConfigMap("away"))
    store: Store = KubernetesStateHandleStore(client, "away", storage, lambda key: True)
    server.inject(Fault(FaultKind.DROP_AFTER, verb="update", name="away"))
    server.inject(Fault(FaultKind.DROP_BEFORE, verb="get", name="away", skip=2, times=10))
    with pytest.raises(PossibleInconsistentStateError, match="not known whether"):
        store.add_and_lock("job", "plan")
    server.clear_faults()
    assert len(storage.files) == 1
    assert store.get_and_lock("job").retrieve_state() == "plan"
    with pytest.raises(AlreadyExistError):
        store.add_and_lock("job", "plan")


def test_a_deposed_leader_whose_write_is_on_its_way_comes_too_late(
    server: KubernetesApiServer, cluster: KubernetesCluster, storage: FlakyStorage
) -> None:
    """Its request was sent while it led; the successor's lease changed the version, so the request is refused."""
    backend = ConfigMapBackend(cluster)
    backend.elect("old")
    store = backend.open(storage, "old")
    store.add_and_lock("job", "plan")
    version = store.exists("job")
    server.inject(Fault(FaultKind.LATE, verb="update", name=backend.name, seconds=0.3))
    backend_elects = cluster.client()

    class Deposing(StruckKubeClient):
        """Is deposed right after its first write was sent."""

        deposed = False

        def replace_config_map(self, config_map: KubernetesConfigMap) -> KubernetesConfigMap:
            try:
                return super().replace_config_map(config_map)
            finally:
                if not self.deposed:
                    self.deposed = True
                    text = LeaseRecord("new", 15).encode()
                    backend_elects.check_and_update_config_map(
                        backend.name, lambda map: map.with_annotation(LEADER_ANNOTATION, text)
                    )

    old: Store = KubernetesStateHandleStore(cluster.client(Deposing), backend.name, storage, own_key, "old")
    with pytest.raises(FencedError):
        old.replace("job", version, "too late")
    wait_for_late(server)
    successor = backend.open(storage, "new")
    assert successor.get_and_lock("job").retrieve_state() == "plan"
    assert len(storage.files) == 1


def wait_for_late(server: KubernetesApiServer) -> None:
    eventually(lambda: any(served.verb == "late-update" for served in server.requests), "the late write arrived")
