"""Checkpoint coordinator, completed checkpoints, savepoints, restore and retention."""

from holdfast.checkpoint.checkpoint_machine import (
    CheckpointRequestDecider,
    CheckpointTriggerRequest,
    PendingCheckpoint,
    TaskAcknowledgeResult,
)
from holdfast.checkpoint.completed_checkpoint import (
    CheckpointIDCounter,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    RegisterCheckpointIDCounter,
    RegisterCompletedCheckpointStore,
    StandaloneCheckpointIDCounter,
    StandaloneCompletedCheckpointStore,
)
from holdfast.checkpoint.config import CheckpointConfig, CoordinatorConfiguration
from holdfast.checkpoint.coordinator import CheckpointCoordinator
from holdfast.checkpoint.instruction_executor import (
    CheckpointFailureManager,
    CoordinatorServices,
    ExecutionJobVertex,
    FailJobCallback,
)
from holdfast.checkpoint.master_hook import MasterTriggerRestoreHook, WithMasterCheckpointHook
from holdfast.checkpoint.messages import (
    AcknowledgeCheckpoint,
    CheckpointMetaData,
    CheckpointMetrics,
    CheckpointOptions,
    DeclineCheckpoint,
    ExecutionVertex,
    OperatorSubtaskState,
)
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.checkpoint.options import (
    CheckpointingMode,
    ExternalizedCheckpointCleanup,
    ExternalizedCheckpointRetention,
    RecoveryClaimMode,
)
from holdfast.checkpoint.snapshot_type import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    CheckpointType,
    SavepointFormatType,
    SnapshotSharing,
    SnapshotType,
)
from holdfast.checkpoint.statistics import CheckpointStatsTracker
from holdfast.checkpoint.storage import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStorage,
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
    CheckpointStreamFactory,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
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
    "CoordinatorServices",
    "DeclineCheckpoint",
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
