"""A versioned document in an entry of a ConfigMap, for people to read with kubectl.

A conditional update compares the version of the whole ConfigMap, so one update decides about the document and about the
entries beside it, and a write that was on its way when another process wrote is refused by the API server.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from holdfast.errors import AlreadyExistError, ConflictError, CorruptFileError, PossibleInconsistentStateError
from holdfast.ha.kubernetes.client import KubeClient, MissingConfigMapError
from holdfast.ha.kubernetes.config_map import KubernetesConfigMap
from holdfast.storage.register import REGISTER_FORMAT, RegisterRecord, RemovableRegister
from holdfast.storage.versioned_document import DocumentFormat, DocumentRemovedError, RemovableDocument, V

_CREATE_TRIES: Final = 3
_CHECKPOINT_PREFIX: Final = "checkpointID-"


class ConfigMapDocument(RemovableDocument[V]):
    """A document in a ConfigMap, which the first write creates. Entries of others in the ConfigMap are kept.

    Args:
        client: The ConfigMaps.
        template: Name and labels of the ConfigMap.
        key: The entry.
        document_format: How versions are written; the bytes must be text with the number of the version.
        extracts: Returns the entries that repeat parts of a version, for people.
        extract_prefix: Extracts with this prefix that a new version does not have are deleted. If there is one and no
            document, the document was deleted by hand, which is damage.
    """

    def __init__(
        self,
        client: KubeClient,
        template: KubernetesConfigMap,
        key: str,
        document_format: DocumentFormat[V],
        *,
        extracts: Callable[[V], dict[str, str]] = lambda version: {},
        extract_prefix: str | None = None,
    ) -> None:
        super().__init__(document_format)
        self._client = client
        self._template = template
        self._name = template.name
        self._key = key
        self._extracts = extracts
        self._extract_prefix = extract_prefix
        # The version that was seen last and the nonce of its document. Saves a read a write; replaced as a whole, so
        # threads need no lock.
        self._seen: tuple[str, KubernetesConfigMap] | None = None

    def read(self) -> V:
        current = self._client.get_config_map(self._name)
        if current is None:
            return self.format.never_written
        version = self._version_in(current)
        self._seen = (version.nonce, current)
        return version

    def remove(self, base: V) -> None:
        """Delete the whole ConfigMap."""
        current = self._seen_with(base) or self._client.get_config_map(self._name)
        if current is None:
            return
        if self._version_in(current).nonce != base.nonce:
            raise ConflictError(f"{self} was written meanwhile.")
        self._client.delete_version(current)

    def _write_next(self, base: V, new: V) -> None:
        entries = {self._key: self.format.encode(new).decode(), **self._extracts(new)}

        def write(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
            found = self._version_in(current)
            if found.nonce != base.nonce:
                # Perhaps by an earlier try of this transaction, whose answer got lost: `find_outcome` compares nonces.
                raise ConflictError(f"{self} is at version {found.number} already.")
            stale = [key for key in current.data if self._is_extract(key) and key not in entries]
            return current.without(*stale).with_entries(entries)

        if not base.number and self._client.get_config_map(self._name) is None:
            self._create(entries)
            return
        try:
            written = self._client.update_config_map(self._name, write, self._seen_with(base))
        except MissingConfigMapError as error:
            if not base.number:
                raise ConflictError(f"ConfigMap {self._name!r} was deleted meanwhile.") from error
            raise DocumentRemovedError(
                f"ConfigMap {self._name!r} does not exist any more: the {self.format.name} was removed since this "
                "process wrote it. This process stops and changes nothing."
            ) from error
        if written is not None:
            self._seen = (new.nonce, written)

    def _version_in(self, current: KubernetesConfigMap) -> V:
        if self._key in current.data:
            return self.format.decode(current.data[self._key].encode(), f"ConfigMap {self._name}/{self._key}", 0)
        if any(map(self._is_extract, current.data)):
            raise CorruptFileError(
                f"ConfigMap {self._name}", None, f"it has entries {self._extract_prefix}* and no entry {self._key!r}."
            )
        return self.format.never_written

    def _seen_with(self, base: V) -> KubernetesConfigMap | None:
        seen = self._seen
        return seen[1] if seen is not None and seen[0] == base.nonce else None

    def _is_extract(self, key: str) -> bool:
        return self._extract_prefix is not None and key.startswith(self._extract_prefix)

    def _create(self, entries: dict[str, str]) -> None:
        """Create the ConfigMap; again if no answer came, because only one of two such requests can succeed."""
        last: PossibleInconsistentStateError | None = None
        for _ in range(_CREATE_TRIES):
            try:
                self._client.create_config_map(self._template.with_entries(entries))
                return
            except AlreadyExistError as error:
                raise ConflictError(f"ConfigMap {self._name!r} was created, by this request or another.") from error
            except PossibleInconsistentStateError as error:
                last = error
        assert last is not None
        raise last

    def __str__(self) -> str:
        return f"the {self.format.name} in ConfigMap {self._name!r}"


class KubernetesRegister(RemovableRegister):
    """The fenced register of a job in a ConfigMap, which the first write creates.

    ::

        register                          the whole record, as JSON
        counter                           the lowest checkpoint id that is not reserved
        checkpointID-0000000000000000042  one entry a retained checkpoint

    Only ``register`` is read; the other entries are for people.

    Args:
        client: The ConfigMaps.
        template: Name and labels of the ConfigMap.
    """

    def __init__(self, client: KubeClient, template: KubernetesConfigMap) -> None:
        document = ConfigMapDocument(
            client, template, "register", REGISTER_FORMAT, extracts=_extracts, extract_prefix=_CHECKPOINT_PREFIX
        )
        super().__init__(document)


def _extracts(record: RegisterRecord) -> dict[str, str]:
    entries = {"counter": str(record.state.next_checkpoint_id)}
    for pointer in record.state.checkpoints:
        text = json.dumps(asdict(pointer), sort_keys=True)
        entries[f"{_CHECKPOINT_PREFIX}{pointer.checkpoint_id:019d}"] = text
    return entries
