"""Options of high availability, those of Kubernetes included, and the rules for its names."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import ConfigOption, Configuration, DurationType, RefusedOption
from holdfast.kernel.ids import JobID

_MAX_INTEGER: Final = 2**31 - 1
_NO_APPLICATIONS: Final = "there are only jobs, no applications."
TYPES: Final = ("embedded", "filesystem", "zookeeper", "kubernetes")
"""The types except none; any other value is a class path."""
MAX_CLUSTER_ID_LENGTH: Final = 45
_CLUSTER_ID: Final = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class ZooKeeperAcl(Enum):
    """The access rights to the nodes that Holdfast writes."""

    OPEN = "open"
    CREATOR = "creator"


class CleanupStrategy(Enum):
    """How the clean-up of a finished job is retried."""

    EXPONENTIAL_DELAY = "exponential-delay"
    FIXED_DELAY = "fixed-delay"
    NONE = "none"
    OFF = "off"
    DISABLE = "disable"


HA_TYPE: Final[ConfigOption[str]] = ConfigOption(
    "high-availability.type",
    str,
    "none",
    "none (or standalone), filesystem, zookeeper, kubernetes, or the class path of a HighAvailabilityServicesFactory. "
    "embedded keeps everything in the memory of one process, for tests; jobs and job managers refuse it.",
    deprecated_keys=("high-availability", "recovery.mode"),
)


def ha_type(configuration: Configuration) -> str:
    """Return the configured type: none, embedded, filesystem, zookeeper, kubernetes, or a class path."""
    value = configuration.get(HA_TYPE).strip()
    lowered = value.lower()
    if lowered in ("", "none", "standalone"):
        return "none"
    return lowered if lowered in TYPES else value


HA_CLUSTER_ID: Final[ConfigOption[str]] = ConfigOption(
    "high-availability.cluster-id",
    str,
    "/default",
    "Name of the cluster. Processes with the same id, backend and storage directory are candidates of one election.",
)
HA_STORAGE_PATH: Final[ConfigOption[str | None]] = ConfigOption(
    "high-availability.storageDir",
    str,
    None,
    "Directory of the state behind the pointers; all processes of the cluster must reach it. Mandatory except for the "
    "types none and embedded.",
)
HA_JOB_MANAGER_PORT: Final = RefusedOption[str](
    "high-availability.jobmanager.port",
    str,
    "0",
    description="Port of the job manager.",
    reason="the only ports are those of REST (rest.bind-port) and of queries (queryable-state.proxy.ports).",
)

HA_ZOOKEEPER_QUORUM: Final[ConfigOption[str | None]] = ConfigOption(
    "high-availability.zookeeper.quorum",
    str,
    None,
    "The ZooKeeper servers as host:port, separated by commas. Mandatory for the type zookeeper.",
)
HA_ZOOKEEPER_ROOT: Final[ConfigOption[str]] = ConfigOption(
    "high-availability.zookeeper.path.root", str, "/flink", "The node below which each cluster has its node."
)
HA_ZOOKEEPER_EXECUTION_PLANS_PATH: Final[ConfigOption[str]] = ConfigOption(
    "high-availability.zookeeper.path.execution-plans",
    str,
    "/execution-plans",
    "The node of submitted execution plans.",
)
HA_ZOOKEEPER_APPLICATIONS_PATH: Final = RefusedOption[str](
    "high-availability.zookeeper.path.applications",
    str,
    "/applications",
    description="The node of applications.",
    reason=_NO_APPLICATIONS,
)
ZOOKEEPER_SESSION_TIMEOUT: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.zookeeper.client.session-timeout",
    DurationType,
    60_000,
    "Time after which a silent process loses its session, and with it leadership and locks.",
)
ZOOKEEPER_CONNECTION_TIMEOUT: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.zookeeper.client.connection-timeout",
    DurationType,
    15_000,
    "Time limit for connecting, and for one request.",
)
ZOOKEEPER_RETRY_WAIT: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.zookeeper.client.retry-wait",
    DurationType,
    5_000,
    "Pause before the first retry of a request; it doubles with each retry.",
)
ZOOKEEPER_MAX_RETRY_WAIT: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.zookeeper.client.max-retry-wait",
    DurationType,
    60_000,
    "Longest pause before a retry of a request.",
)
ZOOKEEPER_MAX_RETRY_ATTEMPTS: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.zookeeper.client.max-retry-attempts", int, 3, "How often a request is retried."
)
ZOOKEEPER_CLIENT_ACL: Final[ConfigOption[ZooKeeperAcl]] = ConfigOption(
    "high-availability.zookeeper.client.acl",
    ZooKeeperAcl,
    ZooKeeperAcl.OPEN,
    "Access to the nodes: open to every client, or only to their creator, which needs "
    "high-availability.zookeeper.client.authorization.",
)
ZOOKEEPER_CLIENT_AUTHORIZATION: Final[ConfigOption[str | None]] = ConfigOption(
    "high-availability.zookeeper.client.authorization",
    str,
    None,
    "Credentials of the client as scheme:credential, for instance digest:user:password.",
)
ZOOKEEPER_TOLERATE_SUSPENDED_CONNECTIONS: Final[ConfigOption[bool]] = ConfigOption(
    "high-availability.zookeeper.client.tolerate-suspended-connections",
    bool,
    False,
    "Whether a leader keeps leading while its connection is lost and its session may still be alive.",
)
ZOOKEEPER_ENSEMBLE_TRACKER: Final = RefusedOption[bool](
    "high-availability.zookeeper.client.ensemble-tracker",
    bool,
    False,
    description="Whether the client follows changes of the ensemble.",
    reason="the client connects only to the servers of high-availability.zookeeper.quorum; name them all.",
)

FILE_SYSTEM_LEASE_DURATION: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.filesystem.leader-election.lease-duration",
    DurationType,
    15_000,
    "How long candidates wait after the last renewal that they saw before one of them takes over.",
)
FILE_SYSTEM_RENEW_DEADLINE: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.filesystem.leader-election.renew-deadline",
    DurationType,
    10_000,
    "How long a leader keeps leading without a renewal of its lease; must be shorter than the lease duration.",
)
FILE_SYSTEM_RETRY_PERIOD: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.filesystem.leader-election.retry-period",
    DurationType,
    2_000,
    "How often a leader renews its lease and the candidates read it; must be shorter than the renew deadline.",
)

JOB_RESULT_STORE_PATH: Final[ConfigOption[str | None]] = ConfigOption(
    "job-result-store.storage-path",
    str,
    None,
    "Directory of the results of finished jobs. Default: <high-availability.storageDir>/job-result-store/<cluster id>.",
)
JOB_RESULT_STORE_DELETE_ON_COMMIT: Final[ConfigOption[bool]] = ConfigOption(
    "job-result-store.delete-on-commit",
    bool,
    True,
    "Whether a result is deleted after the clean-up of its job. The list of ended jobs does not need it.",
)
APPLICATION_RESULT_STORE_PATH: Final = RefusedOption[str | None](
    "application-result-store.storage-path",
    str,
    None,
    description="Directory of the results of applications.",
    reason=_NO_APPLICATIONS,
)
APPLICATION_RESULT_STORE_DELETE_ON_COMMIT: Final = RefusedOption[bool](
    "application-result-store.delete-on-commit",
    bool,
    True,
    description="Whether the result of an application is deleted after its clean-up.",
    reason=_NO_APPLICATIONS,
)
CLEANUP_STRATEGY: Final[ConfigOption[CleanupStrategy]] = ConfigOption(
    "cleanup-strategy.type",
    CleanupStrategy,
    CleanupStrategy.EXPONENTIAL_DELAY,
    "How a job manager retries the clean-up of a job that has ended: exponential-delay, fixed-delay, or none (off, "
    "disable). The next leader retries what remains.",
)
CLEANUP_EXPONENTIAL_INITIAL_BACKOFF: Final[ConfigOption[int]] = ConfigOption(
    "cleanup-strategy.exponential-delay.initial-backoff",
    DurationType,
    1_000,
    "Pause before the first retry of the clean-up; it doubles with each retry.",
)
CLEANUP_EXPONENTIAL_MAX_BACKOFF: Final[ConfigOption[int]] = ConfigOption(
    "cleanup-strategy.exponential-delay.max-backoff",
    DurationType,
    3_600_000,
    "Longest pause before a retry of the clean-up.",
)
CLEANUP_EXPONENTIAL_ATTEMPTS: Final[ConfigOption[int]] = ConfigOption(
    "cleanup-strategy.exponential-delay.attempts", int, _MAX_INTEGER, "How often the clean-up is retried."
)
CLEANUP_FIXED_DELAY: Final[ConfigOption[int]] = ConfigOption(
    "cleanup-strategy.fixed-delay.delay", DurationType, 60_000, "Pause before a retry of the clean-up."
)
CLEANUP_FIXED_ATTEMPTS: Final[ConfigOption[int]] = ConfigOption(
    "cleanup-strategy.fixed-delay.attempts", int, _MAX_INTEGER, "How often the clean-up is retried."
)
HA_LEADER_SESSION: Final[ConfigOption[str | None]] = ConfigOption(
    "high-availability.leader-session",
    str,
    None,
    "Set by a job manager in the processes of its jobs: its leader session. Such a process does not take part in an "
    "election, because its job manager was elected; each attempt still raises the job's fencing token.",
)
HA_SUBMISSION: Final[ConfigOption[str | None]] = ConfigOption(
    "high-availability.submission",
    str,
    None,
    "Set by a job manager in the processes of its jobs: the name of the submission. A later process of the same "
    "submission uses it to find out that the job has already ended.",
)


CLUSTER_ID: Final[ConfigOption[str | None]] = ConfigOption(
    "kubernetes.cluster-id",
    str,
    None,
    "Name of the cluster: its ConfigMaps are <cluster-id>-cluster-config-map and <cluster-id>-<job id>-config-map. At "
    "most 45 lower-case letters, digits and '-'. Default: high-availability.cluster-id, if that is set.",
    fallback_keys=("high-availability.cluster-id",),
)
NAMESPACE: Final[ConfigOption[str | None]] = ConfigOption(
    "kubernetes.namespace",
    str,
    None,
    "Namespace of the ConfigMaps. Default: the namespace of the kubeconfig's context or of the pod.",
)
CONFIG_FILE: Final[ConfigOption[str | None]] = ConfigOption(
    "kubernetes.config.file",
    str,
    None,
    "A kubeconfig file. Default: the pod's service account, else $KUBECONFIG, else ~/.kube/config.",
)
CONTEXT: Final[ConfigOption[str | None]] = ConfigOption(
    "kubernetes.context", str, None, "Context of the kubeconfig file. Default: its current one."
)
MAX_RETRIES: Final[ConfigOption[int]] = ConfigOption(
    "kubernetes.transactional-operation.max-retries",
    int,
    15,
    "How often a read-modify-write of a ConfigMap is retried after a conflict or a failure.",
)
REQUEST_TIMEOUT: Final[ConfigOption[int]] = ConfigOption(
    "kubernetes.client.request-timeout", DurationType, 10_000, "Time limit for one request to the API server."
)
LEASE_DURATION: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.kubernetes.leader-election.lease-duration",
    DurationType,
    15_000,
    "How long candidates wait after the last renewal that they saw before one of them takes over.",
)
RENEW_DEADLINE: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.kubernetes.leader-election.renew-deadline",
    DurationType,
    15_000,
    "How long a leader keeps leading without a renewal of its lease; at most the lease duration.",
)
RETRY_PERIOD: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.kubernetes.leader-election.retry-period",
    DurationType,
    5_000,
    "How often leader and candidates read the lease.",
)


def check_cluster_id(cluster_id: str | None) -> str:
    """Return the cluster id if Kubernetes takes it as a part of names and as a label.

    Raises:
        ConfigurationError: It is missing, too long, or has characters that Kubernetes does not take.
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
    """Return the name of the ConfigMap with the lease, the leaders' addresses and the plans of a cluster."""
    return f"{cluster_id}-cluster-config-map"


def job_config_map_name(cluster_id: str, job_id: JobID) -> str:
    """Return the name of the ConfigMap of a job's register."""
    return f"{cluster_id}-{job_id.to_hex()}-config-map"


def config_map_labels(cluster_id: str) -> dict[str, str]:
    """Return the labels by which a user finds, and deletes, the ConfigMaps of a cluster."""
    return {"app": cluster_id, "configmap-type": "high-availability", "type": "flink-native-kubernetes"}
