"""Settings of checkpoints under their PyFlink name."""

from holdfast.checkpoint.config import CheckpointConfig
from holdfast.checkpoint.options import CheckpointingMode, ExternalizedCheckpointCleanup

__all__ = ["CheckpointConfig", "CheckpointingMode", "ExternalizedCheckpointCleanup"]
