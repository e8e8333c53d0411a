"""Completed checkpoints and savepoints."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.checkpoint.snapshot_type import CheckpointProperties
from holdfast.storage.file_system import FileSystem, base_name, parent
from holdfast.storage.job_directory import METADATA_NAME
from holdfast.storage.register import CheckpointPointer
from holdfast.storage.state_handle import StateObject


class CompletedCheckpoint(StateObject):
    """A completed checkpoint or savepoint, taken or restored.

    Attributes:
        metadata: Its document.
        path: Its directory, absolute; a restore takes this path.
        pointer: Its entry in the register.
        properties: Kind of the snapshot and when it is deleted.
        timestamp: Time of the trigger, in milliseconds since 1970; 0 for a restored one.
    """

    def __init__(
        self,
        metadata: CheckpointMetadata,
        path: str,
        pointer: CheckpointPointer,
        *,
        properties: CheckpointProperties | None = None,
        timestamp: int = 0,
        fs: FileSystem | None = None,
    ) -> None:
        self.metadata = metadata
        self.path = path
        self.pointer = pointer
        self.properties = properties or CheckpointProperties.from_json(metadata.properties)
        self.timestamp = timestamp
        self._fs = fs
        self.is_discarded = False

    @property
    def checkpoint_id(self) -> int:
        return self.metadata.checkpoint_id

    def get_checkpoint_id(self) -> int:
        """Return the id."""
        return self.metadata.checkpoint_id

    def get_job_id(self) -> str:
        """Return the job's 32 hexadecimal digits."""
        return self.metadata.job_id

    def get_timestamp(self) -> int:
        """Return the time of the trigger, in milliseconds since 1970; 0 for a restored one."""
        return self.timestamp

    def get_completion_timestamp(self) -> int:
        """Return the time of completion, in milliseconds since 1970."""
        return self.metadata.completed_at

    def get_duration(self) -> int:
        """Return the milliseconds from trigger to completion; 0 for a restored one."""
        return self.metadata.completed_at - self.timestamp if self.timestamp else 0

    def get_external_pointer(self) -> str:
        """Return the directory from which it can be restored."""
        return self.path

    def get_operator_states(self) -> Mapping[str, OperatorMetadata]:
        """Return the state of each operator, by uid."""
        return {operator.uid: operator for operator in self.metadata.operators}

    def get_properties(self) -> CheckpointProperties:
        """Return the kind of snapshot and when it is deleted."""
        return self.properties

    def get_state_size(self) -> int:
        """Return the size of its state in bytes."""
        return self.metadata.state_size

    def get_metadata_size(self) -> int:
        """Return the size of its document in bytes."""
        return self.pointer.length

    def should_be_discarded_on_subsume(self) -> bool:
        """Return whether its files are deleted when newer checkpoints replace it."""
        return self.properties.discard_on_subsumed()

    def should_be_discarded_on_shutdown(self, job_status: str) -> bool:
        """Return whether its files are deleted when the job ends with a status, such as ``"FINISHED"``."""
        return self.properties.discard_on(job_status)

    def discard_state(self) -> None:
        """Delete its own directory. Run files may be shared with other checkpoints; the sweep deletes them.

        Raises:
            StorageError: A file could not be deleted.
        """
        self.is_discarded = True
        if self._fs is None:
            return
        for status in self._fs.list(self.path):
            if not status.is_directory:
                self._fs.delete_in(self.path, status.name)
        self._fs.delete_directory(self.path)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompletedCheckpoint):
            return NotImplemented
        return (self.metadata, self.path, self.properties) == (other.metadata, other.path, other.properties)

    def __hash__(self) -> int:
        return hash((self.metadata.checkpoint_id, self.path))

    def __repr__(self) -> str:
        return f"CompletedCheckpoint({self.checkpoint_id}, epoch {self.metadata.epoch}, {self.path!r})"


def pointer_for(metadata: CheckpointMetadata, data: bytes, path: str) -> CheckpointPointer:
    """Return the pointer to a document.

    Args:
        metadata: Its content.
        data: Its bytes.
        path: Its path, relative to the job directory if it is in there.
    """
    return CheckpointPointer(
        checkpoint_id=metadata.checkpoint_id,
        path=path,
        length=len(data),
        digest=hashlib.sha256(data).hexdigest(),
        token=metadata.token,
        is_savepoint=metadata.is_savepoint,
    )


def directory_of(metadata_path: str) -> str:
    """Return the directory of a document, which is the external pointer of its checkpoint."""
    return parent(metadata_path) if base_name(metadata_path) == METADATA_NAME else metadata_path
