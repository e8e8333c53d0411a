"""Names and options of high availability on Kubernetes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.errors import ConfigurationError
from holdfast.ha import options as option
from holdfast.ha.options import check_cluster_id, cluster_config_map_name, config_map_labels, job_config_map_name
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID

JOB = JobID.from_hex("0123456789abcdef0123456789abcdef")


def test_names_are_those_of_the_contract() -> None:
    assert cluster_config_map_name("demo") == "demo-cluster-config-map"
    assert job_config_map_name("demo", JOB) == "demo-0123456789abcdef0123456789abcdef-config-map"
    assert config_map_labels("demo") == {
        "app": "demo",
        "type": "flink-native-kubernetes",
        "configmap-type": "high-availability",
    }


def test_the_longest_cluster_id_makes_legal_names() -> None:
    assert len(job_config_map_name(check_cluster_id("a" * 45), JOB)) <= 253


@pytest.mark.parametrize("cluster_id", ["a", "demo-1", "1st", "a" * 45])
def test_good_cluster_ids_pass(cluster_id: str) -> None:
    assert check_cluster_id(cluster_id) == cluster_id


@pytest.mark.parametrize(
    "cluster_id", ["Demo", "a_b", "a.b", "-a", "a-", "/default", "a b", "ä", "a" * 46, "", None, "a\n"]
)
def test_cluster_ids_that_kubernetes_cannot_take_are_refused(cluster_id: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"kubernetes\.cluster-id"):
        check_cluster_id(cluster_id)


def test_defaults_are_those_of_the_contract() -> None:
    configuration = Configuration()
    assert configuration.get(option.LEASE_DURATION) == 15_000
    assert configuration.get(option.RENEW_DEADLINE) == 15_000
    assert configuration.get(option.RETRY_PERIOD) == 5_000
    assert configuration.get(option.MAX_RETRIES) == 15
    assert option.LEASE_DURATION.key == "high-availability.kubernetes.leader-election.lease-duration"
    assert option.MAX_RETRIES.key == "kubernetes.transactional-operation.max-retries"


def test_the_options_are_known_without_the_kubernetes_client() -> None:
    """The client is an extra: who does not have it can still read and check a configuration."""
    program = (
        "import sys; sys.modules['lightkube'] = None; sys.modules['httpx2'] = None\n"
        "import holdfast.ha.options\n"
        "from holdfast.errors import ConfigurationError\n"
        "try:\n"
        "    from holdfast.ha.kubernetes import KubeClient\n"
        "except ConfigurationError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'holdfast[kubernetes]'" in done.stdout
