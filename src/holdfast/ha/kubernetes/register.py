"""The fenced register of a job in a ConfigMap, for people to read with kubectl.

Everything stands in one ConfigMap, so one conditional update decides about all of it::

    register                          version, token, owner, terminal status, nonces of the last writes
    counter                           the lowest checkpoint id that nobody has reserved
    checkpointID-0000000000000000042  one entry a retained checkpoint, for people

The entry `register` is the whole record; the others repeat parts of it. Conditional updates compare the version of
the whole ConfigMap, so a write that was on its way when somebody raised the token is refused by the API server.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from holdfast.errors import (
    AlreadyExistError,
    ConflictError,
    CorruptFileError,
    FencedError,
    HoldfastError,
    PossibleInconsistentStateError,
)
from holdfast.ha.kubernetes.client import KubeClient, MissingConfigMapError
from holdfast.ha.kubernetes.config_map import KubernetesConfigMap
from holdfast.storage.register import GENESIS, RegisterRecord, RemovableRegister

REGISTER_KEY: Final = "register"
COUNTER_KEY: Final = "counter"
CHECKPOINT_PREFIX: Final = "checkpointID-"
_CREATE_TRIES: Final = 3


class KubernetesRegister(RemovableRegister):
    """A register in a ConfigMap, which is created by the first write.

    Args:
        client: The ConfigMaps.
        template: Name and labels of the ConfigMap.
    """

    def __init__(self, client: KubeClient, template: KubernetesConfigMap) -> None:
        self._client = client
        self._template = template
        self._name = template.name
        # The version that was seen last and the nonce of its register. Saves a read a write; replaced as a whole, so
        # threads need no lock.
        self._seen: tuple[str, KubernetesConfigMap] | None = None

    def _load(self) -> RegisterRecord:
        current = self._client.get_config_map(self._name)
        if current is None:
            return GENESIS
        record = self._record_of(current)
        self._seen = (record.nonce, current)
        return record

    def _record_of(self, current: KubernetesConfigMap) -> RegisterRecord:
        if REGISTER_KEY not in current.data:
            if any(key.startswith(CHECKPOINT_PREFIX) for key in current.data):
                raise CorruptFileError(
                    f"ConfigMap {self._name}", None, f"it names checkpoints and has no entry {REGISTER_KEY!r}."
                )
            return GENESIS
        return RegisterRecord.decode(current.data[REGISTER_KEY].encode(), f"ConfigMap {self._name}/{REGISTER_KEY}")

    def _swap(self, base: RegisterRecord, new: RegisterRecord) -> None:
        entries = _entries(new)

        def write(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
            found = self._record_of(current)
            if found != base:
                # Perhaps by an earlier try of this transaction, whose answer got lost: the caller looks back.
                raise ConflictError(f"The register is at version {found.state.version} already.")
            stale = [key for key in current.data if key.startswith(CHECKPOINT_PREFIX) and key not in entries]
            return current.without(*stale).with_entries(entries)

        if base == GENESIS and self._client.get_config_map(self._name) is None:
            self._create(entries)
        else:
            seen = self._seen
            known = seen[1] if seen is not None and seen[0] == base.nonce else None
            try:
                written = self._client.update_config_map(self._name, write, known)
            except MissingConfigMapError as error:
                raise self._removed(base) from error
            if written is not None:
                self._seen = (new.nonce, written)

    def _remove(self, base: RegisterRecord) -> None:
        seen = self._seen
        current = seen[1] if seen is not None and seen[0] == base.nonce else self._client.get_config_map(self._name)
        if current is None:
            return
        if self._record_of(current) != base:
            raise ConflictError(f"The register in ConfigMap {self._name!r} was written meanwhile.")
        self._client.delete_version(current)

    def _removed(self, base: RegisterRecord) -> HoldfastError:
        if base == GENESIS:
            return ConflictError(f"ConfigMap {self._name!r} was deleted meanwhile.")
        return FencedError(
            f"ConfigMap {self._name!r} does not exist any more: the register was removed since this leader wrote it. "
            "This leader stops and changes nothing."
        )

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

    def __repr__(self) -> str:
        return f"KubernetesRegister({self._name!r})"


def _entries(record: RegisterRecord) -> dict[str, str]:
    state = record.state
    entries = {REGISTER_KEY: record.encode().decode(), COUNTER_KEY: str(state.next_checkpoint_id)}
    for pointer in state.checkpoints:
        text = json.dumps(asdict(pointer), sort_keys=True)
        entries[f"{CHECKPOINT_PREFIX}{pointer.checkpoint_id:019d}"] = text
    return entries
