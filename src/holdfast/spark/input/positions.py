"""Spark's own checkpoint directory of a query: what of it a checkpoint of ours keeps, and how a new one is seeded.

A job attempt owns a private directory on the driver's disk, which is scratch. A checkpoint holds the offset-log
entries of its batch and of the one before, and handles of the sources' own metadata entries, each copied once into
checkpoint storage. A new private directory is written from these; Spark then continues with the batch after.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from holdfast.checkpoint.recovery.replay import AGAIN
from holdfast.errors import CorruptFileError
from holdfast.kernel import fault
from holdfast.storage.file_system.os_error import translate
from holdfast.storage.job.job_directory import SHARED, JobDirectory
from holdfast.storage.job.naming import FileName

COMMIT_ENTRY = 'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark writes into `commits/N` of a query without a watermark of its own."""


class QueryDirectory:
    """The private Spark checkpoint directory of one job attempt.

    Args:
        path: An empty or absent local directory.
        job: The job's directory in checkpoint storage.
        token: The attempt's token, for the names of copied files.
    """

    def __init__(self, path: Path, job: JobDirectory, token: int) -> None:
        self.path = path
        self._job = job
        self._token = token
        self._copied: dict[str, dict[str, Any]] = {}

    @property
    def uri(self) -> str:
        """The directory as Spark's option takes it, whatever its default file system is."""
        return self.path.absolute().as_uri()

    def seed(self, positions: Mapping[str, Any]) -> None:
        """Writes what Spark needs to continue after the batch of a checkpoint.

        Raises:
            CorruptFileError: A copied source entry is damaged.
            StorageError: The directory cannot be written.
        """
        batch = positions["batch_id"]
        self._write("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        for number, text in positions["offsets"].items():
            self._write(f"offsets/{number}", text.encode())
            # Spark runs a batch that it has planned and not committed once more, with exactly the same rows.
            if not (positions.get(AGAIN) and int(number) == batch):
                self._write(f"commits/{number}", COMMIT_ENTRY.encode())
        assert str(batch) in positions["offsets"]
        for name, handle in positions["sources"].items():
            path = self._job.absolute(handle["path"])
            content = self._job.fs.read(path, 0, handle["size"] + 1)
            if xxhash.xxh3_64_hexdigest(content) != handle["digest"]:
                raise CorruptFileError(
                    path, 0, f"the copied source entry {path!r} is damaged: start from the checkpoint before (-s PATH)"
                )
            self._write(f"sources/{name}", content)
            self._copied[name] = dict(handle)

    def positions(self, batch_id: int, epoch: int) -> dict[str, Any]:
        """Where the sources stand after a planned batch; copies new source entries into checkpoint storage.

        Raises:
            StorageError: An entry cannot be copied.
        """
        offsets = {str(n): text for n in (batch_id - 1, batch_id) if (text := self._entry("offsets", n)) is not None}
        sources = {name: self._handle(name, path, epoch) for name, path in self._source_entries()}
        self._copied = sources
        return {"batch_id": batch_id, "offsets": offsets, "sources": sources}

    def _handle(self, name: str, path: Path, epoch: int) -> dict[str, Any]:
        known = self._copied.get(name)
        if known is not None:
            return known
        content = path.read_bytes()
        file_name = FileName.new(self._token, epoch, 0, "source", 0).format(".src")
        relative = f"{SHARED}/{file_name}"
        with fault.point("source.copy"):
            self._job.fs.create_exclusive(self._job.absolute(relative), content)
        return {"path": relative, "size": len(content), "digest": xxhash.xxh3_64_hexdigest(content)}

    def _source_entries(self) -> Iterator[tuple[str, Path]]:
        root = self.path / "sources"
        for folder, _, names in sorted(os.walk(root)):
            for name in sorted(names):
                if not name.startswith(".") and not name.endswith(".tmp"):
                    path = Path(folder) / name
                    yield str(path.relative_to(root)), path

    def _entry(self, kind: str, number: int) -> str | None:
        path = self.path / kind / str(number)
        return path.read_text() if path.exists() else None

    def _write(self, name: str, content: bytes) -> None:
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise translate(error, "write", str(path)) from error
