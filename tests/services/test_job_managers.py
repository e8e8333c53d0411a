"""Two job managers whose election, plans and registers are in ZooKeeper or Kubernetes; the leader is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.ids import JobID
from holdfast.testing.kubernetes.api_server import KubernetesApiServer
from holdfast.testing.server.zookeeper import ZooKeeperServer
from tests.services.test_ha_takeover import of_type
from tests.stories.cluster import Cluster, counted, is_gone, processes_of, rows, until
from tests.stories.process import ROOT

WORDS = ROOT / "tests" / "programs" / "submitted_words.py"

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]


@pytest.fixture(params=["zookeeper", "kubernetes"])
def cluster(request: Any, tmp_path: Path) -> Iterator[Cluster]:
    server = ZooKeeperServer() if request.param == "zookeeper" else KubernetesApiServer()
    with server as backend:
        options = of_type(request.param, tmp_path, backend)
        cluster = Cluster(tmp_path)
        cluster.options = {key: str(value) for key, value in options.items()}
        yield cluster
        cluster.close()


def test_the_other_job_manager_goes_on_and_nothing_is_left_in_the_store(tmp_path: Path, cluster: Cluster) -> None:
    leader = cluster.start()
    cluster.says(0, "leads, in session")
    texts, output, job = tmp_path / "texts", tmp_path / "output", str(JobID.from_name("words"))
    texts.mkdir()
    (texts / "0.txt").write_text("kelp sand")
    cluster.run("submit", WORDS, "-Dpipeline.name=words", "--", texts, output)
    until(lambda: rows(output) == counted("kelp sand"), "the first file is counted")
    cluster.start()
    (process,) = processes_of(leader)
    leader.kill()
    until(lambda: is_gone(process), "the process of the job ends with its job manager")
    (texts / "1.txt").write_text("kelp")
    until(lambda: rows(output) == counted("kelp sand", "kelp"), "the other one goes on")
    (texts / "end").touch()
    cluster.status(job, "FINISHED")
    until(lambda: cluster.kept() == [], "nothing is kept of the job")
    assert "was submitted before" not in cluster.run("submit", WORDS, "-Dpipeline.name=words", "--", texts, output)
    cluster.status(job, "FINISHED")
    assert rows(output) == counted("kelp sand", "kelp"), "a job that has finished does not run again"
