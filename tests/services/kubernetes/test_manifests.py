"""The manifests of `deploy/kubernetes`: what they name is there, the API server takes them, and their rights suffice.

What their service account must be able to do is done with its token alone: a job manager is started with the arguments
of the manifest; and, where there is a real API server, Spark makes executors, which run here as the entry point of the
image would start them, because there is no kubelet.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from holdfast.dispatcher.process import check_options
from holdfast.kernel.ids import JobID
from holdfast.testing.kubernetes.api_server import KubernetesApiServer
from holdfast.testing.leader_election_contract import eventually
from tests.services.kubernetes.cluster import REAL, KubernetesCluster
from tests.services.kubernetes.test_rbac import MANIFEST, LeastRights, is_settled
from tests.stories.cluster import Cluster, counted, rows, until
from tests.stories.process import ROOT

DIRECTORY = MANIFEST.parent
WORDS = ROOT / "tests/programs/submitted_words.py"
WORKLOADS = {"jobmanager.yaml": "StatefulSet", "job.yaml": "Deployment"}
APIS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
}
EXECUTOR_SECONDS = 120

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]
on_a_real_server = pytest.mark.skipif(not os.environ.get(REAL), reason=f"{REAL} names no cluster")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DIRECTORY / name).read_text()))


def workload(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of a manifest, and its only container."""
    (found,) = [document for document in documents(name) if document["kind"] == WORKLOADS[name]]
    assert found["spec"]["selector"]["matchLabels"] == found["spec"]["template"]["metadata"]["labels"]
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def options(container: dict[str, Any]) -> dict[str, str]:
    pairs = [argument[2:].split("=", 1) for argument in container["args"] if argument.startswith("-D")]
    return dict(pairs)


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_a_manifest_names_is_there(name: str) -> None:
    pod, container = workload(name)
    named = options(container)
    check_options({key: value for key, value in named.items() if not key.startswith("spark.")})
    accounts = {document["metadata"]["name"] for document in documents("rbac.yaml")}
    assert pod["serviceAccountName"] in accounts
    assert {
        document["subjects"][0]["name"] for document in documents("spark.yaml") if "subjects" in document
    } <= accounts
    assert named["spark.kubernetes.container.image"] == container["image"], "driver and executors have one image"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]
    storage = named["high-availability.storageDir"]
    assert any(storage.startswith(f"{path}/") for path in paths)
    claim = "spark.kubernetes.executor.volumes.persistentVolumeClaim.shared"
    (shared,) = [volume for volume in pod["volumes"] if volume["name"] == "shared"]
    assert named[f"{claim}.options.claimName"] == shared["persistentVolumeClaim"]["claimName"]
    assert storage.startswith(named[f"{claim}.mount.path"]), "executors see the checkpoints under the same path"
    variables = {variable["name"] for variable in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= variables
    probes = json.dumps([container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")])
    assert re.findall("/health/([a-z]+)", probes) == ["live", "live", "ready"]
    assert named["rest.bind-port"] in json.dumps(container.get("ports", probes))


@on_a_real_server
@pytest.mark.parametrize("name", ["rbac.yaml", "spark.yaml", "jobmanager.yaml", "job.yaml"])
def test_the_api_server_takes_every_field(cluster: KubernetesCluster, name: str) -> None:
    text = (DIRECTORY / name).read_text().replace("my-namespace", cluster.namespace)
    for document in yaml.safe_load_all(text):
        path = APIS[document["kind"]].format(cluster.namespace)
        answer = cluster.request("POST", path, document, fieldValidation="Strict")
        assert answer.status_code == 201, answer.text


class Account(LeastRights):
    """The namespace as the service account sees it that both manifests of rights have made."""

    def __init__(self, directory: Path, server: KubernetesApiServer | None) -> None:
        super().__init__(directory, server)
        for document in yaml.safe_load_all(
            (DIRECTORY / "spark.yaml").read_text().replace("my-namespace", self.namespace)
        ):
            path = APIS[document["kind"]].format(self.namespace)
            assert self.request("POST", path, document, fieldValidation="Strict").status_code == 201

    @property
    def token(self) -> str:
        (user,) = yaml.safe_load(self.kubeconfig.read_text())["users"]
        return str(user["user"]["token"])


@pytest.fixture
def account(api_server: KubernetesApiServer | None, tmp_path: Path) -> Iterator[Account]:
    made = Account(tmp_path, api_server)
    eventually(lambda: is_settled(made.client()), "a real cluster takes a moment to act on new roles")
    yield made
    made.close()


def test_a_job_manager_with_the_arguments_of_the_manifest_leads_under_its_rights(
    account: Account, tmp_path: Path
) -> None:
    _, container = workload("jobmanager.yaml")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    cluster = Cluster(tmp_path)
    cluster.options = {
        key: re.sub("^/(shared|tls)(?=/)", str(tmp_path), value)
        for key, value in options(container).items()
        if not key.startswith(("spark.", "process."))
    }
    cluster.options |= {
        "kubernetes.namespace": account.namespace,
        "kubernetes.config.file": str(account.kubeconfig),
        "rest.address": "localhost",
        "rest.bind-port": "0",
        "rest.tls.authority": str(tmp_path / "ca.pem"),
    }
    assert container["args"][:2] == ["holdfast", "jobmanager"]
    try:
        manager = cluster.start()
        cluster.says(0, "leads, in session")
        (url,) = re.findall(r"is at (https://localhost:\d+),", cluster.log(0).read_text())
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            # As a kubelet asks: by the address of the pod, without a token and without looking at the certificate.
            request = urllib.request.Request(
                f"{url}{container[probe]['httpGet']['path']}", headers={"Host": "10.1.2.3"}
            )
            assert urllib.request.urlopen(request, context=ssl._create_unverified_context()).status == 200
        texts, output = tmp_path / "texts", tmp_path / "output"
        texts.mkdir()
        (texts / "0.txt").write_text("kelp sand")
        job = str(JobID.from_name("words"))
        assert cluster.run("submit", WORDS, "-Dpipeline.name=words", "--", texts, output).strip() == job
        until(lambda: rows(output) == counted("kelp sand"), "the job runs")
        rescaled = "count  4" in elsewhere("rescale", job, "4", *cluster.arguments)
        assert rescaled, "who is on another host finds the leader by the election, and knows it by its certificate"
        assert "counts the words" in elsewhere("logs", job, *cluster.arguments)
        assert "state: RUNNING" in elsewhere("info", job, *cluster.arguments)
        assert elsewhere("savepoint", job, str(tmp_path / "savepoints"), *cluster.arguments).strip()
        (texts / "end").touch()
        cluster.status(job, "FINISHED")
        assert rows(output) == counted("kelp sand")
        manager.terminate()
        assert manager.wait(60) == 0
    finally:
        cluster.close()


def elsewhere(*arguments: str) -> str:
    """Runs a command on a host of another name, where there is such a thing; returns what it prints."""
    command = [str(Path(sys.executable).with_name("holdfast")), *arguments]
    renamed = ["unshare", "--map-root-user", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
    if shutil.which("unshare") and subprocess.run([*renamed, "true"], capture_output=True, check=False).returncode == 0:
        command = [*renamed, *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Kubelet:
    """Runs the executors that Spark asks for as processes of this machine, as the image's entry point starts them."""

    def __init__(self, account: Account, directory: Path) -> None:
        self.account = account
        self.directory = directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def pods(self) -> list[dict[str, Any]]:
        return list(self.account.request("GET", self.account.path("pods")).json()["items"])

    def work(self) -> None:
        while not self.over.wait(0.5):
            for pod in self.pods():
                name = pod["metadata"]["name"]
                if name not in self.processes:
                    self.processes[name] = self.started(pod)

    def started(self, pod: dict[str, Any]) -> subprocess.Popen[bytes]:
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "my-image"
        fields = {"status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for variable in container["env"]:
            source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            environment[variable["name"]] = fields[source] if source else variable.get("value", "")
        log = (self.directory / f"{pod['metadata']['name']}.log").open("wb")
        command = [ROOT / "deploy/entrypoint.sh", *container["args"]]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.directory)

    def close(self) -> None:
        self.over.set()
        self.thread.join()
        for process in self.processes.values():
            process.terminate()
            process.wait(30)


@on_a_real_server
@pytest.mark.spark
def test_spark_makes_executors_and_removes_them_under_the_rights_of_the_manifest(
    account: Account, tmp_path: Path
) -> None:
    server = account.config.cluster
    authority = tmp_path / "cluster-ca.pem"
    if server.certificate_auth_data:
        authority.write_bytes(base64.b64decode(server.certificate_auth_data))
    else:
        authority.write_text(Path(server.certificate_auth).read_text())
    program = tmp_path / "job.py"
    program.write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print(spark.sparkContext.parallelize(range(100), 4).map(lambda n: n * n).sum(), flush=True)\n"
        "spark.stop()\n"
    )
    given = {key: value for key, value in options(workload("job.yaml")[1]).items() if key.startswith("spark.")}
    given = {key: value for key, value in given.items() if ".volumes." not in key and ".pod.name" not in key}
    given |= {
        "spark.master": f"k8s://{server.server}",
        "spark.driver.host": "127.0.0.1",
        "spark.kubernetes.namespace": account.namespace,
        "spark.kubernetes.authenticate.oauthToken": account.token,
        "spark.kubernetes.authenticate.caCertFile": str(authority),
        "spark.executor.memory": "512m",
        "spark.executor.instances": "1",
        "spark.ui.enabled": "false",
    }
    submit = Path(sys.executable).with_name("spark-submit")
    command = [submit, *(word for key, value in given.items() for word in ("--conf", f"{key}={value}")), program]
    kubelet = Kubelet(account, tmp_path)
    try:
        environment = {**os.environ, "KUBECONFIG": "/dev/null", "PYSPARK_PYTHON": sys.executable}
        said = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=EXECUTOR_SECONDS, check=False
        )
        assert said.returncode == 0, said.stderr[-6000:]
        assert "328350" in said.stdout
        assert "Forbidden" not in said.stderr, said.stderr
        assert kubelet.processes
        until(
            lambda: kubelet.pods() == [] or all("deletionTimestamp" in p["metadata"] for p in kubelet.pods()), "they go"
        )
        maps = account.request("GET", account.path("configmaps")).json()["items"]
        assert [one["metadata"]["name"] for one in maps if one["metadata"]["name"].startswith("spark-")] == []
    finally:
        kubelet.close()
