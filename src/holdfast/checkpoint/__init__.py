"""Coordinator, completed checkpoints, savepoints, restore, retention."""

from holdfast.checkpoint.config.checkpoint_config import CheckpointConfig, CoordinatorConfiguration
from holdfast.checkpoint.config.failure import CheckpointFailureManager, FailJobCallback
from holdfast.checkpoint.config.options import (
    CheckpointingMode,
    ExternalizedCheckpointCleanup,
    ExternalizedCheckpointRetention,
    RecoveryClaimMode,
)
from holdfast.checkpoint.coordination.coordinator import CheckpointCoordinator
from holdfast.checkpoint.coordination.master_hook import MasterTriggerRestoreHook, WithMasterCheckpointHook
from holdfast.checkpoint.coordination.vertex import ExecutionJobVertex
from holdfast.checkpoint.coordination.wiring import Wiring
from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.document.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.checkpoint.document.snapshot_type import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    CheckpointType,
    SavepointFormatType,
    SnapshotSharing,
    SnapshotType,
)
from holdfast.checkpoint.message.trigger import (
    AcknowledgeCheckpoint,
    CheckpointMetaData,
    CheckpointMetrics,
    CheckpointOptions,
    DeclineCheckpoint,
    ExecutionVertex,
    OperatorSubtaskState,
)
from holdfast.checkpoint.protocol.pending_checkpoint import PendingCheckpoint, TaskAcknowledgeResult
from holdfast.checkpoint.protocol.request import CheckpointRequestDecider, CheckpointTriggerRequest
from holdfast.checkpoint.statistics.tracker import CheckpointStatsTracker
from holdfast.checkpoint.storage.checkpoint_storage import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from holdfast.checkpoint.storage.location import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
    CheckpointStreamFactory,
)
from holdfast.checkpoint.store.completed_store import (
    CompletedCheckpointStore,
    RegisterCompletedCheckpointStore,
    StandaloneCompletedCheckpointStore,
)
from holdfast.checkpoint.store.id_counter import (
    CheckpointIDCounter,
    RegisterCheckpointIDCounter,
    StandaloneCheckpointIDCounter,
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
    "Wiring",
    "WithMasterCheckpointHook",
]
