"""The versioned store under the API server double: one counter over all objects, a history, compaction.

It behaves as etcd does under a real API server: each write gets a new, larger version that is global to the store
(with gaps, so that no client can get used to "plus one"), watches read the history from a version, and history
that was compacted is gone: who asks for it is told so.
"""

from __future__ import annotations

import asyncio
import copy
import random
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Key = tuple[str, str, str, str]
"""Group, plural, namespace ("" for objects of the cluster), name."""


class CompactedError(Exception):
    """The history before `version` was asked for, and is compacted."""

    def __init__(self, version: int) -> None:
        super().__init__(f"required revision has been compacted, oldest is {version}")
        self.version = version


@dataclass(frozen=True)
class Change:
    """One entry of the history."""

    version: int
    key: Key
    before: Json | None
    after: Json | None

    @property
    def last(self) -> Json:
        """The object after the change or, of a deletion, its last state under the version of the deletion."""
        if self.after is not None:
            return self.after
        assert self.before is not None
        gone = copy.deepcopy(self.before)
        gone["metadata"]["resourceVersion"] = str(self.version)
        return gone


class VersionedStore:
    """Objects by key with their history. It belongs to one event loop; nothing in it is safe for other threads.

    Args:
        seed: makes the gaps between versions repeatable.
        keep: so many changes are kept before the older half is compacted.
    """

    def __init__(self, seed: int = 0, keep: int = 20_000) -> None:
        self._random = random.Random(seed)
        self._keep = keep
        self._objects: dict[Key, Json] = {}
        self._base: dict[Key, Json] = {}
        self._history: list[Change] = []
        self.version = self._random.randint(100, 10_000)
        self.compacted = self.version
        self._changed = asyncio.Event()

    def get(self, key: Key) -> Json | None:
        """A copy of the newest state of an object."""
        found = self._objects.get(key)
        return copy.deepcopy(found) if found is not None else None

    def select(self, group: str, plural: str, namespace: str | None, version: int | None = None) -> list[Json]:
        """The objects of a type in key order, all namespaces if None, now or as they were at `version`."""
        objects = self._objects if version is None else self._at(version)
        return [
            copy.deepcopy(objects[key])
            for key in sorted(objects)
            if key[:2] == (group, plural) and (namespace is None or key[2] == namespace)
        ]

    def _at(self, version: int) -> dict[Key, Json]:
        if version < self.compacted:
            raise CompactedError(self.compacted)
        objects = dict(self._base)
        for change in self._history:
            if change.version > version:
                break
            if change.after is None:
                objects.pop(change.key, None)
            else:
                objects[change.key] = change.after
        return objects

    def keys_in(self, namespace: str) -> list[Key]:
        """The keys of all objects of a namespace."""
        return [key for key in self._objects if key[2] == namespace]

    def put(self, key: Key, value: Json) -> Json:
        """Write an object: it gets the next version. Writing what is there already changes nothing at all."""
        before = self._objects.get(key)
        after = copy.deepcopy(value)
        if before is not None:
            after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            if after == before:
                return copy.deepcopy(before)
        self._advance()
        after["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = after
        self._record(Change(self.version, key, before, after))
        return copy.deepcopy(after)

    def delete(self, key: Key) -> Json:
        """Delete an object that is there; the answer is its last state."""
        before = self._objects.pop(key)
        self._advance()
        self._record(Change(self.version, key, before, None))
        return copy.deepcopy(before)

    def _advance(self) -> None:
        self.version += self._random.randint(1, 3)

    def _record(self, change: Change) -> None:
        self._history.append(change)
        if len(self._history) > self._keep:
            self.compact(self._history[len(self._history) // 2].version)
        self.wake()

    def wake(self) -> None:
        """Wake everybody who waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait until something changes, or for `seconds`."""
        try:
            await asyncio.wait_for(self._changed.wait(), max(seconds, 0.0))
        except TimeoutError:
            return

    def since(self, version: int) -> list[Change]:
        """The changes after `version`.

        Raises:
            CompactedError: they are not all there any more.
        """
        if version < self.compacted:
            raise CompactedError(self.compacted)
        return [change for change in self._history if change.version > version]

    def compact(self, version: int | None = None) -> None:
        """Forget the history up to `version` (default: all of it)."""
        upto = self.version if version is None else min(version, self.version)
        self._base = self._at(upto)
        self._history = [change for change in self._history if change.version > upto]
        self.compacted = upto
        self.wake()
