"""The seeds' example of state backends and their configuration.

The class names and keys are the older ones that Flink's users know; each stands for `hashmap` with a checkpoint
storage, and says so when it is used.

    python examples/seeds/backends.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from holdfast.checkpoint import CheckpointStorage, FileSystemCheckpointStorage
from holdfast.common import Configuration
from holdfast.datastream import CheckpointConfig, CheckpointingMode, StreamExecutionEnvironment
from holdfast.state import FsStateBackend, HashMapStateBackend, MemoryStateBackend, StateBackend


def configure(directory: str) -> StreamExecutionEnvironment:
    """An environment with everything that the seeds' example sets."""
    # Memory state backend, for testing and development.
    memory_backend: StateBackend = MemoryStateBackend()
    print("testing:    ", memory_backend)

    # File system state backend, for production.
    fs_backend: StateBackend = FsStateBackend(f"file://{directory}/checkpoints")
    print("production: ", fs_backend)

    # The same in the configuration of a job: set_state_backend(fs_backend) says what the next two lines say.
    job_config = Configuration()
    job_config.set_string("state.backend", "filesystem")
    job_config.set_string("state.checkpoints.dir", f"file://{directory}/checkpoints")
    job_config.set_string("state.savepoints.dir", f"file://{directory}/savepoints")

    # Checkpointing.
    job_config.set_long("execution.checkpointing.interval", 30_000)
    job_config.set_string("execution.checkpointing.mode", "EXACTLY_ONCE")
    job_config.set_long("execution.checkpointing.timeout", 600_000)
    job_config.set_integer("execution.checkpointing.max-concurrent-checkpoints", 1)
    job_config.set_long("execution.checkpointing.min-pause", 5_000)
    return StreamExecutionEnvironment.get_execution_environment(job_config)


def show(config: CheckpointConfig) -> None:
    """Prints what the program's options come to."""
    storage: CheckpointStorage = config.resolve_checkpoint_storage()
    print("storage:    ", storage)
    print("interval:   ", config.get_checkpoint_interval(), "ms")
    assert config.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE


def main() -> None:
    """Configures one environment by the older keys, and the same by code."""
    with tempfile.TemporaryDirectory() as directory:
        env = configure(str(Path(directory)))
        env.get_configuration().validate()
        show(env.get_checkpoint_config())

        by_code = StreamExecutionEnvironment.get_execution_environment()
        by_code.set_state_backend(HashMapStateBackend())
        by_code.get_checkpoint_config().set_checkpoint_storage(FileSystemCheckpointStorage(f"{directory}/checkpoints"))
        by_code.enable_checkpointing(30_000, CheckpointingMode.EXACTLY_ONCE)
        show(by_code.get_checkpoint_config())


if __name__ == "__main__":
    main()
