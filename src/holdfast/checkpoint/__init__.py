"""Coordinator, completed checkpoints, savepoints, restore, retention."""

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.completed_store import (
    CompletedCheckpointStore,
    RegisterCompletedCheckpointStore,
    StandaloneCompletedCheckpointStore,
)
from holdfast.checkpoint.config import CheckpointConfig, CoordinatorConfiguration
from holdfast.checkpoint.coordinator import CheckpointCoordinator
from holdfast.checkpoint.epoch_coordinator import EpochCheckpointCoordinator
from holdfast.checkpoint.failure import CheckpointFailureManager, FailJobCallback
from holdfast.checkpoint.id_counter import (
    CheckpointIDCounter,
    RegisterCheckpointIDCounter,
    StandaloneCheckpointIDCounter,
)
from holdfast.checkpoint.location import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
    CheckpointStreamFactory,
)
from holdfast.checkpoint.master_hook import MasterTriggerRestoreHook, WithMasterCheckpointHook
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.checkpoint.options import (
    CheckpointingMode,
    ExternalizedCheckpointCleanup,
    ExternalizedCheckpointRetention,
    RecoveryClaimMode,
)
from holdfast.checkpoint.pending_checkpoint import PendingCheckpoint, TaskAcknowledgeResult
from holdfast.checkpoint.request import CheckpointRequestDecider, CheckpointTriggerRequest
from holdfast.checkpoint.snapshot_type import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    CheckpointType,
    SavepointFormatType,
    SnapshotSharing,
    SnapshotType,
)
from holdfast.checkpoint.statistics import CheckpointStatsTracker
from holdfast.checkpoint.storage import CheckpointStorage, FileSystemCheckpointStorage, JobManagerCheckpointStorage
from holdfast.checkpoint.trigger import (
    AcknowledgeCheckpoint,
    CheckpointMetaData,
    CheckpointMetrics,
    CheckpointOptions,
    DeclineCheckpoint,
    ExecutionVertex,
    OperatorSubtaskState,
)
from holdfast.checkpoint.vertex import ExecutionJobVertex
from holdfast.errors import CheckpointError, CheckpointException, CheckpointFailureReason

__all__ = [
    "AcknowledgeCheckpoint",
    "CheckpointConfig",
    "CheckpointCoordinator",
    "CheckpointError",
    "CheckpointException",
    "CheckpointFailureManager",
    "CheckpointFailureReason",
    "CheckpointIDCounter",
    "CheckpointMetaData",
    "CheckpointMetadata",
    "CheckpointMetrics",
    "CheckpointOptions",
    "CheckpointProperties",
    "CheckpointRequestDecider",
    "CheckpointRetentionPolicy",
    "CheckpointStateOutputStream",
    "CheckpointStatsTracker",
    "CheckpointStorage",
    "CheckpointStorageLocation",
    "CheckpointStorageLocationReference",
    "CheckpointStreamFactory",
    "CheckpointTriggerRequest",
    "CheckpointType",
    "CheckpointedStateScope",
    "CheckpointingMode",
    "CompletedCheckpoint",
    "CompletedCheckpointStore",
    "CoordinatorConfiguration",
    "DeclineCheckpoint",
    "EpochCheckpointCoordinator",
    "ExecutionJobVertex",
    "ExecutionVertex",
    "ExternalizedCheckpointCleanup",
    "ExternalizedCheckpointRetention",
    "FailJobCallback",
    "FileSystemCheckpointStorage",
    "JobManagerCheckpointStorage",
    "MasterTriggerRestoreHook",
    "OperatorMetadata",
    "OperatorSubtaskState",
    "PendingCheckpoint",
    "RecoveryClaimMode",
    "RegisterCheckpointIDCounter",
    "RegisterCompletedCheckpointStore",
    "SavepointFormatType",
    "SnapshotSharing",
    "SnapshotType",
    "StandaloneCheckpointIDCounter",
    "StandaloneCompletedCheckpointStore",
    "TaskAcknowledgeResult",
    "WithMasterCheckpointHook",
]
