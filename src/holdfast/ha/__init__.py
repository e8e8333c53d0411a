"""High availability: leader election and retrieval, and the stores that outlive a driver.

``create_high_availability_services`` makes what ``high-availability.type`` names. The clients of ZooKeeper and
Kubernetes are imported by ``holdfast.ha.zookeeper`` and ``holdfast.ha.kubernetes`` only.
"""

from __future__ import annotations

from holdfast.ha.election.election_service import LeaderElectionService
from holdfast.ha.election.leader_election import (
    LeaderContender,
    LeaderElection,
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionError,
    LeaderElectionListener,
)
from holdfast.ha.election.leader_information import LeaderInformation, LeaderInformationRegister
from holdfast.ha.election.leader_retrieval import (
    DefaultLeaderRetrievalService,
    LeaderRetrievalDriver,
    LeaderRetrievalError,
    LeaderRetrievalEventHandler,
    LeaderRetrievalListener,
    LeaderRetrievalService,
    StandaloneLeaderRetrievalService,
)
from holdfast.ha.embedded.services import EmbeddedCluster, EmbeddedHaServices
from holdfast.ha.embedded.store import EmbeddedStateHandleStore
from holdfast.ha.file_system.services import FileSystemHaServices
from holdfast.ha.file_system.store import FileSystemStateHandleStore
from holdfast.ha.job_manager_store.blob_store import (
    BlobKey,
    BlobStore,
    BlobStoreService,
    FileSystemBlobStore,
    VoidBlobStore,
)
from holdfast.ha.job_manager_store.execution_plan import ExecutionPlan, JobResourceRequirements
from holdfast.ha.job_manager_store.execution_plan_store import (
    DefaultExecutionPlanStore,
    ExecutionPlanStore,
    StandaloneExecutionPlanStore,
)
from holdfast.ha.job_manager_store.execution_plan_watcher import ExecutionPlanListener
from holdfast.ha.job_manager_store.file_job_result_store import FileSystemJobResultStore
from holdfast.ha.job_manager_store.job_result import ApplicationStatus, FailureCause, JobResult
from holdfast.ha.job_manager_store.job_result_store import EmbeddedJobResultStore, JobResultEntry, JobResultStore
from holdfast.ha.services.abstract_services import AbstractHaServices
from holdfast.ha.services.checkpoint_recovery import (
    CheckpointRecoveryFactory,
    RegisterCheckpointRecoveryFactory,
    StandaloneCheckpointRecoveryFactory,
)
from holdfast.ha.services.factory import (
    HighAvailabilityServicesFactory,
    create_client_high_availability_services,
    create_high_availability_services,
)
from holdfast.ha.services.ha_services import (
    ClientHighAvailabilityServices,
    GloballyCleanableResource,
    HighAvailabilityServices,
)
from holdfast.ha.services.options import ha_type
from holdfast.ha.services.standalone import StandaloneHaServices

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
