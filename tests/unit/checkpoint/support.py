"""Tasks, documents and jobs that the tests of this package share."""

from __future__ import annotations

from dataclasses import replace

from holdfast.checkpoint import (
    CheckpointCoordinator,
    CheckpointFailureManager,
    CoordinatorServices,
    ExecutionVertex,
    FailJobCallback,
)
from holdfast.checkpoint.completed_checkpoint import read_retained
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.state.run_file import RunHandle
from holdfast.storage.job_directory import FileName, JobDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import FileRegister

JOB = JobID.from_name("test")


class RecordingFailures(FailJobCallback):
    """Remembers why the job would fail."""

    def __init__(self):
        self.causes = []

    def fail_job(self, cause):
        self.causes.append((cause, None))

    def fail_job_due_to_task_failure(self, cause, execution_id):
        self.causes.append((cause, execution_id))


class RecordingVertex(ExecutionVertex):
    """A task that remembers what it was told."""

    def __init__(self, vertex="v", index=0, state="RUNNING"):
        self.vertex, self.index, self.state = vertex, index, state
        self.triggered, self.completed, self.aborted, self.subsumed = [], [], [], []
        self.options = None
        self.failure = None

    def get_job_vertex_id(self):
        return self.vertex

    def get_parallel_subtask_index(self):
        return self.index

    def get_execution_id(self):
        return f"{self.vertex}-{self.index}"

    def get_execution_state(self):
        return self.state

    def trigger_checkpoint(self, checkpoint_id, timestamp, options):
        if self.failure is not None:
            raise self.failure
        self.triggered.append(checkpoint_id)
        self.options = options

    def notify_checkpoint_complete(self, checkpoint_id, timestamp, subsumed_checkpoint_id):
        self.completed.append((checkpoint_id, subsumed_checkpoint_id))

    def notify_checkpoint_subsumed(self, checkpoint_id):
        self.subsumed.append((checkpoint_id, self.completed[-1][0]))

    def notify_checkpoint_aborted(self, checkpoint_id, latest_completed_id, timestamp):
        self.aborted.append((checkpoint_id, latest_completed_id))


def run_handle(name, token=1, epoch=1, size=5):
    return RunHandle(f"shared/{name}", size, 4, "d" * 64, (0, 127), {"s": 1}, token, epoch, {"event": None})


def document(checkpoint_id, epoch=1, token=1, runs=(), **fields):
    operator = OperatorMetadata("counter", "0" * 32, "Counter", 2, 128, {"type": "bigint"}, tuple(runs))
    defaults = {
        "job_id": str(JOB),
        "job_name": "test",
        "incarnation": "line",
        "completed_at": 1000 + checkpoint_id,
        "processing_time": 900,
        "operators": (operator,),
        "source_positions": {"batch_id": epoch},
    }
    return CheckpointMetadata(checkpoint_id=checkpoint_id, epoch=epoch, token=token, **(defaults | fields))


class LocalJob:
    """One job directory, with leaders that come and go."""

    def __init__(self, root, **options):
        self.directory = JobDirectory(LocalFileSystem(), str(root), JOB)
        self.register = FileRegister(self.directory.fs, self.directory.register_dir)
        self.configuration = Configuration(options)
        self.failures = RecordingFailures()

    def lead(self, clock=None, owner="leader", recovered=None):
        """Raise the token; return the writer and a coordinator."""
        writer = self.register.raise_token(owner)
        found = read_retained(self.directory, writer.state) if recovered is None else recovered
        failures = CheckpointFailureManager(0, self.failures)
        services = CoordinatorServices.for_job_attempt(
            writer, self.directory, self.configuration, failures, found, clock=clock
        )
        return writer, CheckpointCoordinator.for_epochs(services)

    def write_run(self, token, epoch, attempt=0, owner="abcd0123", subtask=0):
        """Write a file that looks like a run and return its handle."""
        name = FileName.new(token, epoch, attempt, owner, subtask).format()
        self.directory.fs.write_atomic(f"{self.directory.shared_dir}/{name}", b"state")
        return run_handle(name, token, epoch)

    def files(self):
        """Return the names of all run files."""
        return set(self.directory.fs.list_names(self.directory.shared_dir))

    def checkpoints(self):
        """Return the ids of the checkpoint directories."""
        return sorted(
            int(name[4:]) for name in self.directory.fs.list_names(self.directory.path) if name.startswith("chk-")
        )


def complete(coordinator, epoch, runs=(), **fields):
    """Take the checkpoint of an epoch and return it."""
    pending = coordinator.begin(epoch, force=True)
    assert pending is not None
    metadata = document(pending.checkpoint_id, epoch, runs=runs, **fields)
    return coordinator.complete(pending, metadata)


def with_operator(metadata, **changes):
    """Return a document with its first operator changed."""
    first, *others = metadata.operators
    return replace(metadata, operators=(replace(first, **changes), *others))
