"""Options of high availability on Kubernetes, and the rules for names there."""

from __future__ import annotations

import re
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.ids import JobID
from holdfast.kernel.option import ConfigOption, DurationType

CLUSTER_ID: Final[ConfigOption[str | None]] = ConfigOption(
    "kubernetes.cluster-id",
    str,
    None,
    "Names the cluster: its ConfigMaps are <cluster-id>-cluster-config-map and <cluster-id>-<job id>-config-map. At "
    "most 45 lower-case letters, digits and '-'. By default high-availability.cluster-id, if that is set.",
    fallback_keys=("high-availability.cluster-id",),
)
NAMESPACE: Final[ConfigOption[str | None]] = ConfigOption(
    "kubernetes.namespace",
    str,
    None,
    "The namespace of the ConfigMaps; by default that of the kubeconfig's context or of the pod.",
)
CONFIG_FILE: Final[ConfigOption[str | None]] = ConfigOption(
    "kubernetes.config.file",
    str,
    None,
    "A kubeconfig file. By default the pod's service account, else $KUBECONFIG, else ~/.kube/config.",
)
CONTEXT: Final[ConfigOption[str | None]] = ConfigOption(
    "kubernetes.context", str, None, "The context of the kubeconfig file; by default its current one."
)
MAX_RETRIES: Final[ConfigOption[int]] = ConfigOption(
    "kubernetes.transactional-operation.max-retries",
    int,
    15,
    "How often a read-modify-write of a ConfigMap is tried again after a conflict or a failure.",
)
REQUEST_TIMEOUT: Final[ConfigOption[int]] = ConfigOption(
    "kubernetes.client.request-timeout", DurationType, 10_000, "How long one request to the API server may take."
)
LEASE_DURATION: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.kubernetes.leader-election.lease-duration",
    DurationType,
    15_000,
    "How long candidates wait, after they saw the leader renew its lease for the last time, before one takes over.",
)
RENEW_DEADLINE: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.kubernetes.leader-election.renew-deadline",
    DurationType,
    15_000,
    "How long a leader goes on leading without having renewed its lease; at most the lease duration.",
)
RETRY_PERIOD: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.kubernetes.leader-election.retry-period",
    DurationType,
    5_000,
    "How long leader and candidates wait between two looks at the lease.",
)

MAX_CLUSTER_ID_LENGTH: Final = 45
_CLUSTER_ID: Final = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def check_cluster_id(cluster_id: str | None) -> str:
    """Return a cluster id that Kubernetes can take as a part of names and as a label.

    Raises:
        ConfigurationError: It is none, too long, or has characters that Kubernetes does not take.
    """
    if not cluster_id:
        raise ConfigurationError(
            f"Option {CLUSTER_ID.key!r} is not set; high availability on Kubernetes needs it to name its ConfigMaps."
        )
    if len(cluster_id) > MAX_CLUSTER_ID_LENGTH:
        raise ConfigurationError(
            f"Option {CLUSTER_ID.key!r}: {cluster_id!r} has {len(cluster_id)} characters; use at most "
            f"{MAX_CLUSTER_ID_LENGTH}, so that the names of its ConfigMaps stay legal."
        )
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise ConfigurationError(
            f"Option {CLUSTER_ID.key!r}: {cluster_id!r} cannot be part of a name in Kubernetes; use lower-case "
            "letters, digits and '-', with a letter or digit at both ends."
        )
    return cluster_id


def cluster_config_map_name(cluster_id: str) -> str:
    """The ConfigMap of the lock, the leaders' addresses and the plans of a cluster."""
    return f"{cluster_id}-cluster-config-map"


def job_config_map_name(cluster_id: str, job_id: JobID) -> str:
    """The ConfigMap of a job's register."""
    return f"{cluster_id}-{job_id.to_hex()}-config-map"


def config_map_labels(cluster_id: str) -> dict[str, str]:
    """The labels by which a user finds, and deletes, what a cluster left behind."""
    return {"app": cluster_id, "configmap-type": "high-availability", "type": "flink-native-kubernetes"}
