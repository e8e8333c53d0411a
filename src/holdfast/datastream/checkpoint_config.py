"""Settings of checkpoints, under PyFlink's path."""

from holdfast.checkpoint.config import CheckpointConfig
from holdfast.checkpoint.options import CheckpointingMode, ExternalizedCheckpointCleanup

__all__ = ["CheckpointConfig", "CheckpointingMode", "ExternalizedCheckpointCleanup"]
