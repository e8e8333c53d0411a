"""Settings of checkpoints under their PyFlink name."""

from holdfast.checkpoint.config.checkpoint_config import CheckpointConfig
from holdfast.checkpoint.config.options import CheckpointingMode, ExternalizedCheckpointCleanup

__all__ = ["CheckpointConfig", "CheckpointingMode", "ExternalizedCheckpointCleanup"]
