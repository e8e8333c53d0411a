"""The contract of versioned documents in memory, files, an object store, ZooKeeper and ConfigMaps."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.exceptions import NoNodeError

from holdfast.ha.kubernetes import KubeClient, KubernetesConfigMap
from holdfast.ha.kubernetes.document import ConfigMapDocument
from holdfast.ha.zookeeper import ZooKeeperConnection
from holdfast.ha.zookeeper.document import ZooKeeperDocument
from holdfast.kernel.ids import new_nonce
from holdfast.storage.file_system import FileSystem, join
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.object_store import object_store_for
from holdfast.storage.versioned_document import FileDocument, MemoryDocument
from holdfast.testing import S3Server, ZooKeeperServer
from holdfast.testing.kubernetes.api_server import KubernetesApiServer
from tests.contract.document_contract import (
    WORDS,
    Document,
    DocumentSite,
    RemovableDocumentContract,
    VersionedDocumentContract,
)
from tests.contract.register_contract import Gate, GatedDocument
from tests.services.kubernetes.cluster import HastyClock, KubernetesCluster
from tests.services.kubernetes.test_register import GatedKubeClient
from tests.services.test_zookeeper_register import GatedConnection, connect
from tests.stories.gated_file_system import GatedFileSystem

_numbers = itertools.count()


class MemorySite(DocumentSite):
    def __init__(self) -> None:
        self._document = MemoryDocument(WORDS)

    def open(self, gate: Gate | None = None) -> Document:
        return self._document if gate is None else GatedDocument(self._document, gate)


class FileSite(DocumentSite):
    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory

    def open(self, gate: Gate | None = None) -> Document:
        return FileDocument(self._fs if gate is None else GatedFileSystem(self._fs, gate), self._directory, WORDS)


class ZooKeeperSite(DocumentSite):
    def __init__(self, plain: ZooKeeperConnection, gated: GatedConnection) -> None:
        self._plain, self._gated = plain, gated
        self._path = f"/documents/{next(_numbers)}/words"
        self._gated.gate = None

    def open(self, gate: Gate | None = None) -> Document:
        if gate is None:
            return ZooKeeperDocument(self._plain, self._path, WORDS)
        self._gated.gate = gate
        return ZooKeeperDocument(self._gated, self._path, WORDS)

    def close(self) -> None:
        with suppress(NoNodeError):
            self._plain.client.delete(self._path.rpartition("/")[0], recursive=True)


class ConfigMapSite(DocumentSite):
    def __init__(self, plain: KubeClient, gated: GatedKubeClient) -> None:
        self._plain, self._gated = plain, gated
        self._template = KubernetesConfigMap(f"words-{next(_numbers)}", labels={"app": "test"})
        self._gated.gate = None

    def open(self, gate: Gate | None = None) -> Document:
        self._gated.gate = gate or self._gated.gate
        client = self._plain if gate is None else self._gated
        return ConfigMapDocument(client, self._template, "words", WORDS)

    def close(self) -> None:
        self._plain.delete_config_map(self._template.name)


class TestMemoryDocument(VersionedDocumentContract, RemovableDocumentContract):
    @pytest.fixture
    def new_site(self) -> Callable[[], DocumentSite]:
        return MemorySite


class TestFileDocument(VersionedDocumentContract):
    ahead = (1, 2, 63, 64, 65, 100)

    @pytest.fixture
    def new_site(self, tmp_path: Path) -> Callable[[], DocumentSite]:
        return lambda: FileSite(LocalFileSystem(), str(tmp_path / new_nonce()))


@pytest.mark.services
class TestObjectStoreDocument(VersionedDocumentContract):
    ahead = (1, 2, 66)

    @pytest.fixture(scope="class")
    @staticmethod
    def server() -> Iterator[S3Server]:
        with S3Server() as server:
            yield server

    @pytest.fixture
    def new_site(self, server: S3Server) -> Callable[[], DocumentSite]:
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        server.make_bucket(bucket)
        root = f"s3://{bucket}/documents"
        fs = object_store_for(root, server.options)
        return lambda: FileSite(fs, join(root, new_nonce()))


@pytest.mark.services
class TestZooKeeperDocument(VersionedDocumentContract, RemovableDocumentContract):
    @pytest.fixture(scope="class")
    @staticmethod
    def connections() -> Iterator[tuple[ZooKeeperConnection, GatedConnection]]:
        with ZooKeeperServer() as server:
            plain, gated = connect(server.address), connect(server.address, GatedConnection, max_retries=0)
            yield plain, gated
            gated.close()
            plain.close()

    @pytest.fixture
    def new_site(self, connections: tuple[ZooKeeperConnection, GatedConnection]) -> Callable[[], DocumentSite]:
        return lambda: ZooKeeperSite(*connections)


@pytest.mark.services
class TestConfigMapDocument(VersionedDocumentContract, RemovableDocumentContract):
    @pytest.fixture(scope="class")
    @staticmethod
    def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KubeClient, GatedKubeClient]]:
        with KubernetesApiServer() as server:
            cluster = KubernetesCluster(tmp_path_factory.mktemp("cluster"), server)
            yield cluster.client(), cluster.client(GatedKubeClient, clock=HastyClock())
            cluster.close()

    @pytest.fixture
    def new_site(self, clients: tuple[KubeClient, GatedKubeClient]) -> Callable[[], DocumentSite]:
        return lambda: ConfigMapSite(*clients)
