"""Fixtures: one API server for all tests of this folder, a fresh namespace for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.kubernetes.api_server import KubernetesApiServer
from tests.services.kubernetes.cluster import REAL, KubernetesCluster


@pytest.fixture(scope="session")
def api_server() -> Iterator[KubernetesApiServer | None]:
    if os.environ.get(REAL):
        yield None
        return
    with KubernetesApiServer() as server:
        yield server


@pytest.fixture(scope="module")
def module_cluster(
    api_server: KubernetesApiServer | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubernetesCluster]:
    """A namespace for all tests of a module, which keep apart by names."""
    made = KubernetesCluster(tmp_path_factory.mktemp("cluster"), api_server)
    yield made
    made.close()


@pytest.fixture
def cluster(api_server: KubernetesApiServer | None, tmp_path: Path) -> Iterator[KubernetesCluster]:
    """A namespace; tests that use no more than this run on a real cluster as well."""
    made = KubernetesCluster(tmp_path, api_server)
    yield made
    if api_server is not None:
        api_server.clear_faults()
    made.close()


@pytest.fixture
def server(cluster: KubernetesCluster) -> KubernetesApiServer:
    """The double, for tests that break it."""
    if cluster.server is None:
        pytest.skip("a real cluster cannot be broken on order")
    return cluster.server
