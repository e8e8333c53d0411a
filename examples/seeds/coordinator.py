"""Setting up a checkpoint coordinator by hand, with periodic checkpoints.

python examples/seeds/coordinator.py CHECKPOINTS
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from holdfast.checkpoint import (
    AcknowledgeCheckpoint,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureManager,
    CheckpointingMode,
    CheckpointOptions,
    ExecutionVertex,
    ExternalizedCheckpointCleanup,
    FailJobCallback,
    FileSystemCheckpointStorage,
    OperatorSubtaskState,
    StandaloneCheckpointIDCounter,
    StandaloneCompletedCheckpointStore,
)
from holdfast.common import JobID
from holdfast.errors import HoldfastError
from holdfast.kernel.clock import Clock
from holdfast.state import HashMapStateBackend


class Subtask(ExecutionVertex):
    """A task with a counter as its state, which acknowledges as soon as it is asked."""

    def __init__(self, job: JobID, index: int) -> None:
        self.job = job
        self.index = index
        self.counted = 0
        self.committed = 0
        self.acknowledge: Callable[[AcknowledgeCheckpoint], object] = print
        self.notified = threading.Event()

    def get_job_vertex_id(self) -> str:
        return "counter"

    def get_parallel_subtask_index(self) -> int:
        return self.index

    def get_execution_id(self) -> str:
        return f"counter-{self.index}"

    def get_execution_state(self) -> str:
        return "RUNNING"

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, options: CheckpointOptions) -> None:
        self.counted += 1
        state = OperatorSubtaskState("counter", state={"counted": self.counted}, parallelism=2)
        self.acknowledge(
            AcknowledgeCheckpoint(self.job, self.get_execution_id(), checkpoint_id, subtask_state=(state,))
        )

    def notify_checkpoint_complete(self, checkpoint_id: int, timestamp: int, subsumed_checkpoint_id: int) -> None:
        self.committed = checkpoint_id
        self.notified.set()

    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed_id: int, timestamp: int) -> None:
        print(f"checkpoint {checkpoint_id} was aborted")


class FailJob(FailJobCallback):
    """Says that the job must fail."""

    def fail_job(self, cause: HoldfastError) -> None:
        print("the job fails:", cause)

    def fail_job_due_to_task_failure(self, cause: HoldfastError, execution_id: str) -> None:
        print(f"the job fails because of {execution_id}:", cause)


def create_coordinator(checkpoints: str, *, clock: Clock | None = None) -> tuple[CheckpointCoordinator, list[Subtask]]:
    """Return a coordinator and the two tasks that it coordinates."""
    # Set up checkpoint coordinator
    checkpoint_config = CheckpointConfig()
    checkpoint_config.set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE)
    checkpoint_config.set_checkpoint_interval(30000)  # 30 seconds
    checkpoint_config.set_checkpoint_timeout(600000)  # 10 minutes
    checkpoint_config.set_max_concurrent_checkpoints(1)
    checkpoint_config.set_min_pause_between_checkpoints(5000)  # 5 seconds

    # Configure checkpoint retention
    checkpoint_config.enable_externalized_checkpoints(ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION)

    # Set up checkpoint storage
    checkpoint_config.set_checkpoint_storage(FileSystemCheckpointStorage(checkpoints))

    job_id = JobID.from_name("seeds")
    tasks = [Subtask(job_id, index) for index in range(2)]
    user_class_loader = None  # Python has none
    executor = None  # everything in the thread that brings the event
    coordinator = CheckpointCoordinator(
        job_id,
        checkpoint_config,
        tasks,
        tasks,
        tasks,
        user_class_loader,
        StandaloneCheckpointIDCounter(),
        StandaloneCompletedCheckpointStore(max_retained=1),
        HashMapStateBackend(),
        executor,
        CheckpointFailureManager(0, FailJob()),
        clock=clock,
    )
    for task in tasks:
        task.acknowledge = coordinator.receive_acknowledge_message
    return coordinator, tasks


def main(checkpoints: str) -> None:
    """Wait for the first periodic checkpoint."""
    coordinator, tasks = create_coordinator(checkpoints)

    # Start periodic checkpointing
    coordinator.start_checkpoint_scheduler()
    print("waiting for the first periodic checkpoint, which comes within 30 seconds")
    tasks[1].notified.wait()
    print("completed:", coordinator.get_successful_checkpoints())
    coordinator.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
