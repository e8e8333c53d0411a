"""What the disk says, read past all faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NoReturn

from holdfast.checkpoint.metadata import CheckpointMetadata, decode
from holdfast.errors import HoldfastError
from holdfast.state.run_file import RunHandle
from holdfast.storage.file_system import base_name
from holdfast.storage.job_directory import FileName
from holdfast.storage.register import CheckpointPointer, RegisterRecord
from tests.simulation.disk import Disk, File
from tests.simulation.workload import Row


class Evidence:
    """Documents, runs and versions of the register, each parsed once.

    Args:
        disk: The disk.
        job_path: The job's directory.
        fail: Called with what is not as it must be.
    """

    def __init__(self, disk: Disk, job_path: str, fail: Callable[[str], NoReturn]) -> None:
        self._disk, self._job, self._fail = disk, job_path, fail
        self._documents: dict[str, CheckpointMetadata] = {}
        self._names: dict[int, tuple[CheckpointMetadata, list[FileName]]] = {}
        self._digests: dict[str, str] = {}
        self._contents: dict[str, tuple[bytes, dict[str, Row]]] = {}

    def document(self, pointer: CheckpointPointer) -> CheckpointMetadata:
        known = self._documents.get(pointer.digest)
        if known is not None and self.file(f"{self._job}/{pointer.path}") is not None:
            return known
        file = self.file(f"{self._job}/{pointer.path}")
        if file is None:
            if known is not None:
                return known
            self._fail(f"checkpoint {pointer.checkpoint_id} has no document")
        assert file is not None
        try:
            document = decode(file.data, pointer.path)
        except HoldfastError as error:
            self._fail(f"checkpoint {pointer.checkpoint_id} has a damaged document: {error}")
            raise
        if len(file.data) != pointer.length:
            self._fail(f"the document of checkpoint {pointer.checkpoint_id} is not the one that was completed")
        self._documents[pointer.digest] = document
        return document

    def record(self, path: str) -> RegisterRecord:
        file = self.file(path)
        assert file is not None
        return RegisterRecord.decode(file.data, path)

    def is_run(self, path: str, run: RunHandle) -> bool:
        """Whether a run is there, and what it was."""
        file = self.file(path)
        if file is None or len(file.data) != run.size:
            return False
        if run.footer_offset == 0:  # of tasks that are not real, whose runs have no footer
            return file.digest == run.digest
        return self._digests.setdefault(path, file.digest) == file.digest

    def data(self, path: str) -> bytes:
        """What is in a file that must be there."""
        file = self.file(path)
        if file is None:
            self._fail(f"{path} is named, and not there")
        return file.data

    def content(self, path: str) -> dict[str, Row]:
        """What is in a run of tasks that are not real."""
        data = self.data(path)
        known = self._contents.get(path)
        if known is None or known[0] is not data:
            known = self._contents[path] = (data, json.loads(data))
        return known[1]

    def file(self, path: str) -> File | None:
        try:
            return self._disk.file(path)
        except OSError:
            return None

    def names(self, document: CheckpointMetadata) -> list[FileName]:
        """The files that a document names."""
        known = self._names.get(id(document))
        if known is None:
            parsed = (FileName.parse(base_name(text)) for text in document.strings())
            known = self._names[id(document)] = (document, [name for name in parsed if name is not None])
        return known[1]
