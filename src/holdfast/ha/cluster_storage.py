"""The part of ``high-availability.storageDir`` that belongs to one cluster.

::

    <storageDir>/<cluster id>/cluster.json                  which cluster this is
    <storageDir>/<cluster id>/submittedExecutionPlan<random>
    <storageDir>/<cluster id>/blob/job_<job id>/blob_<key>
    <storageDir>/<cluster id>/checkpoints/                  unless configured elsewhere
    <storageDir>/<cluster id>/rest/, ended/                 addresses and ends of job managers
    <storageDir>/job-result-store/<cluster id>/             unless configured elsewhere

A cluster has a random name, which is both in its coordination store and in its storage directory. Two clusters with the
same id, of which one uses this store and the other this directory, are refused at start: they would delete each other's
files later.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Final

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    CorruptFileError,
    NotExistError,
    StorageError,
)
from holdfast.ha import options
from holdfast.ha.blob_store import FileSystemBlobStore
from holdfast.ha.execution_plan_store import ExecutionPlan, execution_plan_serializer
from holdfast.ha.job_result_store import FileSystemJobResultStore
from holdfast.ha.options import CLUSTER_ID
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import FileSystem, is_absolute, join
from holdfast.storage.local import require_exclusive_creation
from holdfast.storage.scheme import file_system_for
from holdfast.storage.state_handle import FileSystemStateStorageHelper, decode_document, encode_document

logger = get_logger(__name__)

_KIND: Final = "cluster"
_FORMAT_VERSION: Final = 1
_MARKER: Final = "cluster.json"
_PLAN_PREFIX: Final = "submittedExecutionPlan"
_BLOBS: Final = "blob"
# Control characters, and what ZooKeeper refuses in a path.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
_MAX_PART_BYTES: Final = 255
# Names below a cluster id, in files and in ZooKeeper, and the name beside all clusters.
_NAMES_IN_CLUSTER: Final = frozenset(
    {"jobs", "leader", "cluster", "execution-plans", _BLOBS, "checkpoints", "ended", "rest", _MARKER}
)
_NAME_BESIDE_CLUSTERS: Final = "job-result-store"


def cluster_path(cluster_id: str) -> str:
    """Return the cluster id as a relative path, without doubled slashes.

    Raises:
        ConfigurationError: It cannot be a path in a file system and in ZooKeeper, or collides with another cluster.
    """
    key = options.HA_CLUSTER_ID.key
    parts = [part for part in cluster_id.split("/") if part]
    if not parts:
        raise ConfigurationError(f"Option {key!r}: {cluster_id!r} is not a cluster id; use letters and digits.")
    for part in parts:
        if part in (".", "..") or _FORBIDDEN.search(part) or len(part.encode("utf-8", "replace")) > _MAX_PART_BYTES:
            raise ConfigurationError(
                f"Option {key!r}: {part!r} in {cluster_id!r} cannot name a directory or a ZooKeeper node; use letters, "
                "digits, '-' and '_'."
            )
    taken = [part for part in parts[1:] if part in _NAMES_IN_CLUSTER] or [
        p for p in parts[:1] if p == _NAME_BESIDE_CLUSTERS
    ]
    if taken:
        raise ConfigurationError(
            f"Option {key!r}: below {taken[0]!r} in {cluster_id!r} another cluster keeps its own data, and would "
            "delete this one with it. Choose another name."
        )
    return "/".join(parts)


def cluster_id_of(configuration: Configuration, kind: str) -> str:
    """Return the configured cluster id for a type of high availability; empty if there is none."""
    chosen = configuration.get(CLUSTER_ID) if kind == "kubernetes" else configuration.get(options.HA_CLUSTER_ID)
    return "/".join(part for part in (chosen or "").split("/") if part)


class ClusterStorage:
    """The files of one cluster.

    Args:
        configuration: Has the storage directory and the cluster id.
        cluster_id: Another id than the configured one.

    Raises:
        ConfigurationError: The directory is not configured, or relative, or the id cannot be used.
    """

    def __init__(self, configuration: Configuration, cluster_id: str | None = None) -> None:
        root = configuration.get(options.HA_STORAGE_PATH)
        if root is None or not root.strip():
            raise ConfigurationError(
                f"Configuration is missing the mandatory parameter {options.HA_STORAGE_PATH.key!r}: name a directory "
                "that all processes of the cluster can read and write."
            )
        if not is_absolute(root):
            raise ConfigurationError(
                f"Option {options.HA_STORAGE_PATH.key!r}: {root!r} is relative, and each process may be started "
                "in another directory. Write it from the root, or as a URI."
            )
        self._configuration = configuration
        self.cluster_id: Final = cluster_id or configuration.get(options.HA_CLUSTER_ID)
        self.fs: Final[FileSystem] = file_system_for(root)
        self.root: Final = root.rstrip("/") or "/"
        self.path: Final = join(self.root, cluster_path(self.cluster_id))

    def open(self, kind: str, put_if_absent: Callable[[bytes], bytes] | None = None) -> None:
        """Make sure that the directory can be written and belongs to this cluster.

        Args:
            kind: The type of high availability.
            put_if_absent: Puts a document into the coordination store unless there is one, and returns the one that is
                there; None if files are the coordination store.

        Raises:
            StorageError: The directory cannot be written.
            ConfigurationError: It belongs to another cluster.
            FormatVersionError: It was written by a newer version.
        """
        self._probe()
        self._make_private()
        # First the files: the marker is written after the document in the coordination store.
        marker = self._read_marker()
        new = {"name": new_nonce(), "cluster_id": self.cluster_id, "type": kind, "storage": self.root}
        if put_if_absent is None:
            agreed = marker or new
        else:
            document = put_if_absent(encode_document(_KIND, _FORMAT_VERSION, new))
            agreed = self._decode(document, f"{kind} entry of cluster {self.cluster_id!r}")
            if marker is not None and agreed["name"] == new["name"]:
                raise self._foreign_cluster_error(marker)
        if marker is None:
            if agreed["storage"] != self.root and self._marker_at(agreed["storage"]) is not None:
                raise self._other_storage_error(agreed)  # otherwise the marker would be under both names
            marker = self._write_marker(agreed)
        if marker["name"] != agreed["name"] or marker["type"] != kind:
            raise self._foreign_cluster_error(marker)
        if put_if_absent is not None and agreed["storage"] != self.root:
            self._compare_storage(agreed)

    def execution_plan_storage(self) -> FileSystemStateStorageHelper[ExecutionPlan]:
        return FileSystemStateStorageHelper(self.fs, self.path, _PLAN_PREFIX, execution_plan_serializer())

    def blob_store(self) -> FileSystemBlobStore:
        return FileSystemBlobStore(self.fs, join(self.path, _BLOBS))

    def job_result_store(self, executor: Executor | None) -> FileSystemJobResultStore:
        directory = join(self.root, "job-result-store", cluster_path(self.cluster_id))
        if configured := self._configuration.get(options.JOB_RESULT_STORE_PATH):
            directory = file_system_for(configured).resolved(configured)  # the user may configure a link
        return FileSystemJobResultStore(
            file_system_for(directory),
            directory,
            delete_on_commit=self._configuration.get(options.JOB_RESULT_STORE_DELETE_ON_COMMIT),
            executor=executor,
        )

    def clean_up(self, remove_pointers: Callable[[], None]) -> None:
        """Delete the marker, the pointers, then the states behind them; may be repeated after an error.

        Args:
            remove_pointers: Deletes all of the cluster's data in the backend.
        """
        self.fs.delete_in(self.path, _MARKER)  # the directory may belong to another cluster from here on
        remove_pointers()
        for name in self.fs.list_names(self.path):
            if name.startswith(_PLAN_PREFIX):
                self.fs.delete_in(self.path, name)
        self.fs.delete_directory(self.path)

    def _probe(self) -> None:
        try:
            require_exclusive_creation(self.fs, self.path)
        except StorageError as error:
            raise StorageError(
                f"The directory of option {options.HA_STORAGE_PATH.key!r} cannot be used by this process. {error}"
            ) from error

    def _make_private(self) -> None:
        """Let only the own user read plans and programs, which may hold secrets; older releases let everybody."""
        plans = [name for name in self.fs.list_names(self.path) if name.startswith(_PLAN_PREFIX)]
        for name in (*plans, _BLOBS):
            try:
                self.fs.make_private(join(self.path, name))
            except NotExistError:  # deleted meanwhile, or never made
                continue
            except StorageError as error:
                logger.warning(
                    "Other users can read %r. Set its mode to 0600, or 0700 for a directory: %s",
                    join(self.path, name),
                    error,
                )

    def _read_marker(self) -> dict[str, Any] | None:
        path = join(self.path, _MARKER)
        try:
            return self._decode(self.fs.read(path), path)
        except NotExistError:
            return None

    def _write_marker(self, agreed: dict[str, Any]) -> dict[str, Any]:
        with suppress(AlreadyExistError):
            self.fs.create_exclusive(join(self.path, _MARKER), encode_document(_KIND, _FORMAT_VERSION, agreed))
        marker = self._read_marker()
        if marker is None:
            raise StorageError(f"{join(self.path, _MARKER)!r} was deleted while the cluster started. Start it again.")
        return marker

    def _decode(self, document: bytes, path: str) -> dict[str, Any]:
        body = decode_document(document, path, _KIND, _FORMAT_VERSION)
        if not all(isinstance(body.get(field), str) for field in ("name", "cluster_id", "type", "storage")):
            raise CorruptFileError(path, None, "a field is missing or wrong.")
        return body

    def _foreign_cluster_error(self, marker: dict[str, Any]) -> ConfigurationError:
        return ConfigurationError(
            f"The storage directory {self.path!r} belongs to another cluster with the id {self.cluster_id!r}, of type "
            f"{marker['type']!r}. Choose another {options.HA_CLUSTER_ID.key!r} or {options.HA_STORAGE_PATH.key!r}. If "
            f"that cluster is gone for good, delete {join(self.path, _MARKER)!r}."
        )

    def _compare_storage(self, agreed: dict[str, Any]) -> None:
        # One directory may have several names; then the marker under the other name is the same.
        if self._marker_at(agreed["storage"]) != self._marker_at(self.root):
            raise self._other_storage_error(agreed)

    def _marker_at(self, root: str) -> bytes | None:
        with suppress(NotExistError, StorageError, ConfigurationError):
            return file_system_for(root).read(join(root, cluster_path(self.cluster_id), _MARKER))
        return None

    def _other_storage_error(self, agreed: dict[str, Any]) -> ConfigurationError:
        return ConfigurationError(
            f"A cluster with the id {self.cluster_id!r} exists and keeps its state in {agreed['storage']!r}, not in "
            f"{self.root!r}. Choose another {options.HA_CLUSTER_ID.key!r}, or the same "
            f"{options.HA_STORAGE_PATH.key!r}."
        )
