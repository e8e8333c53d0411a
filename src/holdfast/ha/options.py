"""Options of high availability; those of Kubernetes are in ``holdfast.ha.options``."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from holdfast.checkpoint.options import RefusedOption
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import ConfigOption, Configuration, DurationType
from holdfast.kernel.ids import JobID

_MAX_INTEGER: Final = 2**31 - 1
_NO_APPLICATIONS: Final = "there are no applications beside the jobs."


class ZooKeeperAcl(Enum):
    """Who may read and change what Holdfast writes to ZooKeeper."""

    OPEN = "open"
    CREATOR = "creator"


class CleanupStrategy(Enum):
    """How often the clean-up of a finished job is tried again."""

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
TYPES: Final = ("embedded", "filesystem", "zookeeper", "kubernetes")
"""The types beside none; anything else is a class path."""


def ha_type(configuration: Configuration) -> str:
    """The configured type: none, embedded, filesystem, zookeeper, kubernetes, or a class path."""
    value = configuration.get(HA_TYPE).strip()
    lowered = value.lower()
    if lowered in ("", "none", "standalone"):
        return "none"
    return lowered if lowered in TYPES else value


HA_CLUSTER_ID: Final[ConfigOption[str]] = ConfigOption(
    "high-availability.cluster-id",
    str,
    "/default",
    "Names the cluster. Processes with one id, one backend and one storage directory are candidates of one election.",
)
HA_STORAGE_PATH: Final[ConfigOption[str | None]] = ConfigOption(
    "high-availability.storageDir",
    str,
    None,
    "Where the state behind the pointers is kept; all processes of the cluster must reach it. Mandatory except for the "
    "types none and embedded.",
)
HA_JOB_MANAGER_PORT: Final = RefusedOption[str](
    "high-availability.jobmanager.port",
    str,
    "0",
    description="Of the job manager.",
    reason="there is no port but that of REST (rest.bind-port), and of queries (queryable-state.proxy.ports).",
)

HA_ZOOKEEPER_QUORUM: Final[ConfigOption[str | None]] = ConfigOption(
    "high-availability.zookeeper.quorum",
    str,
    None,
    "The ZooKeeper servers as host:port, separated by commas. Mandatory for the type zookeeper.",
)
HA_ZOOKEEPER_ROOT: Final[ConfigOption[str]] = ConfigOption(
    "high-availability.zookeeper.path.root", str, "/flink", "The node under which every cluster has its own."
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
    description="Of applications.",
    reason=_NO_APPLICATIONS,
)
ZOOKEEPER_SESSION_TIMEOUT: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.zookeeper.client.session-timeout",
    DurationType,
    60_000,
    "How long a silent process keeps its session, and with it leadership and locks.",
)
ZOOKEEPER_CONNECTION_TIMEOUT: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.zookeeper.client.connection-timeout",
    DurationType,
    15_000,
    "How long connecting, and one request, may take.",
)
ZOOKEEPER_RETRY_WAIT: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.zookeeper.client.retry-wait",
    DurationType,
    5_000,
    "The pause before a request is first tried again.",
)
ZOOKEEPER_MAX_RETRY_WAIT: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.zookeeper.client.max-retry-wait",
    DurationType,
    60_000,
    "The longest pause before a request is tried again; pauses double.",
)
ZOOKEEPER_MAX_RETRY_ATTEMPTS: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.zookeeper.client.max-retry-attempts", int, 3, "How often a request is tried again."
)
ZOOKEEPER_CLIENT_ACL: Final[ConfigOption[ZooKeeperAcl]] = ConfigOption(
    "high-availability.zookeeper.client.acl",
    ZooKeeperAcl,
    ZooKeeperAcl.OPEN,
    "open, or creator, which needs high-availability.zookeeper.client.authorization.",
)
ZOOKEEPER_CLIENT_AUTHORIZATION: Final[ConfigOption[str | None]] = ConfigOption(
    "high-availability.zookeeper.client.authorization",
    str,
    None,
    "How the client proves who it is, as scheme:credential, for instance digest:user:password.",
)
ZOOKEEPER_TOLERATE_SUSPENDED_CONNECTIONS: Final[ConfigOption[bool]] = ConfigOption(
    "high-availability.zookeeper.client.tolerate-suspended-connections",
    bool,
    False,
    "Whether a leader goes on leading while its connection is lost and its session may still live.",
)
ZOOKEEPER_ENSEMBLE_TRACKER: Final = RefusedOption[bool](
    "high-availability.zookeeper.client.ensemble-tracker",
    bool,
    False,
    description="Of the client.",
    reason="the client connects to the servers of high-availability.zookeeper.quorum and to no others; name them all.",
)

FILE_SYSTEM_LEASE_DURATION: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.filesystem.leader-election.lease-duration",
    DurationType,
    15_000,
    "How long candidates wait, after they saw the leader renew its lease for the last time, before one takes over.",
)
FILE_SYSTEM_RENEW_DEADLINE: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.filesystem.leader-election.renew-deadline",
    DurationType,
    10_000,
    "How long a leader goes on leading without having renewed its lease; shorter than the lease duration.",
)
FILE_SYSTEM_RETRY_PERIOD: Final[ConfigOption[int]] = ConfigOption(
    "high-availability.filesystem.leader-election.retry-period",
    DurationType,
    2_000,
    "How often a leader renews its lease and the others look at it; shorter than the renew deadline.",
)

JOB_RESULT_STORE_PATH: Final[ConfigOption[str | None]] = ConfigOption(
    "job-result-store.storage-path",
    str,
    None,
    "Where the results of finished jobs are kept; by default "
    "<high-availability.storageDir>/job-result-store/<cluster id>.",
)
JOB_RESULT_STORE_DELETE_ON_COMMIT: Final[ConfigOption[bool]] = ConfigOption(
    "job-result-store.delete-on-commit",
    bool,
    True,
    "Whether a result is deleted once everything of its job was cleaned up.",
)
APPLICATION_RESULT_STORE_PATH: Final = RefusedOption[str | None](
    "application-result-store.storage-path",
    str,
    None,
    description="Of applications.",
    reason=_NO_APPLICATIONS,
)
APPLICATION_RESULT_STORE_DELETE_ON_COMMIT: Final = RefusedOption[bool](
    "application-result-store.delete-on-commit",
    bool,
    True,
    description="Of applications.",
    reason=_NO_APPLICATIONS,
)
CLEANUP_STRATEGY: Final[ConfigOption[CleanupStrategy]] = ConfigOption(
    "cleanup-strategy.type",
    CleanupStrategy,
    CleanupStrategy.EXPONENTIAL_DELAY,
    "How often a job manager tries again to remove what it keeps of a job that has ended: exponential-delay, "
    "fixed-delay, or none (off, disable). What remains is tried by the next leader.",
)
CLEANUP_EXPONENTIAL_INITIAL_BACKOFF: Final[ConfigOption[int]] = ConfigOption(
    "cleanup-strategy.exponential-delay.initial-backoff",
    DurationType,
    1_000,
    "The pause before the clean-up is first tried again; pauses double.",
)
CLEANUP_EXPONENTIAL_MAX_BACKOFF: Final[ConfigOption[int]] = ConfigOption(
    "cleanup-strategy.exponential-delay.max-backoff",
    DurationType,
    3_600_000,
    "The longest pause before the clean-up is tried again.",
)
CLEANUP_EXPONENTIAL_ATTEMPTS: Final[ConfigOption[int]] = ConfigOption(
    "cleanup-strategy.exponential-delay.attempts", int, _MAX_INTEGER, "How often the clean-up is tried again."
)
CLEANUP_FIXED_DELAY: Final[ConfigOption[int]] = ConfigOption(
    "cleanup-strategy.fixed-delay.delay", DurationType, 60_000, "The pause before the clean-up is tried again."
)
CLEANUP_FIXED_ATTEMPTS: Final[ConfigOption[int]] = ConfigOption(
    "cleanup-strategy.fixed-delay.attempts", int, _MAX_INTEGER, "How often the clean-up is tried again."
)
HA_LEADER_SESSION: Final[ConfigOption[str | None]] = ConfigOption(
    "high-availability.leader-session",
    str,
    None,
    "Set by a job manager in the processes of its jobs: the session in which it leads. Such a process takes part in no "
    "election, because its job manager has; each attempt raises the job's fencing token all the same.",
)
HA_SUBMISSION: Final[ConfigOption[str | None]] = ConfigOption(
    "high-availability.submission",
    str,
    None,
    "Set by a job manager in the processes of its jobs: a name of the submission, by which the next process of it "
    "knows that the job has ended in the meantime.",
)


# Options of high availability on Kubernetes, and the rules for names there.

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
