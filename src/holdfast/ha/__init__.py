"""High availability: leader election and retrieval, and the stores that outlive a driver.

``create_high_availability_services`` makes what ``high-availability.type`` names. The clients of ZooKeeper and
Kubernetes are imported by ``holdfast.ha.zookeeper`` and ``holdfast.ha.kubernetes`` only.
"""

from __future__ import annotations

from holdfast.ha.blob_store import BlobKey, BlobStore, BlobStoreService, FileSystemBlobStore, VoidBlobStore
from holdfast.ha.checkpoint_recovery import (
    CheckpointRecoveryFactory,
    RegisterCheckpointRecoveryFactory,
    StandaloneCheckpointRecoveryFactory,
)
from holdfast.ha.election_service import LeaderElectionService
from holdfast.ha.embedded import EmbeddedCluster, EmbeddedHaServices, EmbeddedStateHandleStore
from holdfast.ha.execution_plan_store import (
    DefaultExecutionPlanStore,
    ExecutionPlan,
    ExecutionPlanListener,
    ExecutionPlanStore,
    JobResourceRequirements,
    StandaloneExecutionPlanStore,
)
from holdfast.ha.job_result_store import (
    ApplicationStatus,
    EmbeddedJobResultStore,
    FailureCause,
    FileSystemJobResultStore,
    JobResult,
    JobResultEntry,
    JobResultStore,
)
from holdfast.ha.leader_election import (
    DefaultLeaderRetrievalService,
    LeaderContender,
    LeaderElection,
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionError,
    LeaderElectionListener,
    LeaderInformation,
    LeaderInformationRegister,
    LeaderRetrievalDriver,
    LeaderRetrievalError,
    LeaderRetrievalEventHandler,
    LeaderRetrievalListener,
    LeaderRetrievalService,
    StandaloneLeaderRetrievalService,
)
from holdfast.ha.options import ha_type
from holdfast.ha.services import (
    AbstractHaServices,
    ClientHighAvailabilityServices,
    GloballyCleanableResource,
    HighAvailabilityServices,
    HighAvailabilityServicesFactory,
    StandaloneHaServices,
    create_client_high_availability_services,
    create_high_availability_services,
)
from holdfast.ha.shared_directory import FileSystemHaServices, FileSystemStateHandleStore

__all__ = [
    "AbstractHaServices",
    "ApplicationStatus",
    "BlobKey",
    "BlobStore",
    "BlobStoreService",
    "CheckpointRecoveryFactory",
    "ClientHighAvailabilityServices",
    "DefaultExecutionPlanStore",
    "DefaultLeaderRetrievalService",
    "EmbeddedCluster",
    "EmbeddedHaServices",
    "EmbeddedJobResultStore",
    "EmbeddedStateHandleStore",
    "ExecutionPlan",
    "ExecutionPlanListener",
    "ExecutionPlanStore",
    "FailureCause",
    "FileSystemBlobStore",
    "FileSystemHaServices",
    "FileSystemJobResultStore",
    "FileSystemStateHandleStore",
    "GloballyCleanableResource",
    "HighAvailabilityServices",
    "HighAvailabilityServicesFactory",
    "JobResourceRequirements",
    "JobResult",
    "JobResultEntry",
    "JobResultStore",
    "LeaderContender",
    "LeaderElection",
    "LeaderElectionDriver",
    "LeaderElectionDriverFactory",
    "LeaderElectionError",
    "LeaderElectionListener",
    "LeaderElectionService",
    "LeaderInformation",
    "LeaderInformationRegister",
    "LeaderRetrievalDriver",
    "LeaderRetrievalError",
    "LeaderRetrievalEventHandler",
    "LeaderRetrievalListener",
    "LeaderRetrievalService",
    "RegisterCheckpointRecoveryFactory",
    "StandaloneCheckpointRecoveryFactory",
    "StandaloneExecutionPlanStore",
    "StandaloneHaServices",
    "StandaloneLeaderRetrievalService",
    "VoidBlobStore",
    "create_client_high_availability_services",
    "create_high_availability_services",
    "ha_type",
]
