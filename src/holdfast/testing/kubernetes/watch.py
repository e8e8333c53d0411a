"""Watches of the API server double: from a version, with bookmarks, time limits and compacted history."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from holdfast.testing.kubernetes import status
from holdfast.testing.kubernetes.selector import Selector
from holdfast.testing.kubernetes.store import Change, CompactedError, VersionedStore
from holdfast.testing.kubernetes.verb import Target, read_number, read_version

Json = dict[str, Any]

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_DEFAULT_SECONDS = 1800.0


@dataclass
class WatchControl:
    """What a test may do to all watches.

    Attributes:
        begun: how many watches have begun.
        silent_upto: the connections of the first so many stay open and nothing is sent on them any more, not even at
            their time limit: the other end is gone and nobody said so.
        generation: a watch ends without a farewell when this number is no longer the one it began with.
        bookmark_seconds: how often a watch that asked for bookmarks gets one.
        gone_as_status: compacted history is answered by the HTTP status 410 instead of an ERROR event. A real server
            may do either; clients have to understand both.
    """

    begun: int = 0
    silent_upto: int = 0
    generation: int = 0
    bookmark_seconds: float = 1.0
    gone_as_status: bool = False


class Watch:
    """One watch of one client."""

    def __init__(self, store: VersionedStore, target: Target, control: WatchControl) -> None:
        self._store = store
        self._target = target
        self._control = control
        self._generation = control.generation
        control.begun += 1
        self._number = control.begun
        self._selector: Selector = target.selector()
        query = target.query
        self._bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        self._initial = query.get("sendInitialEvents") in ("true", "1")
        if self._initial and query.get("resourceVersionMatch") != "NotOlderThan":
            text = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise status.invalid_options("ListOptions", "resourceVersionMatch", text, "FieldValueForbidden")
        seconds = read_number(query, "timeoutSeconds") or _DEFAULT_SECONDS
        self._deadline = time.monotonic() + seconds
        self._asked = read_version(query.get("resourceVersion"))
        self._cursor = store.version if not self._asked else self._asked

    def check(self) -> None:
        """Refuse to start where a server answers with the status instead of an event.

        Raises:
            StatusError: 410.
        """
        if self._control.gone_as_status and self._asked and self._asked < self._store.compacted:
            raise self._gone()

    def _gone(self) -> status.StatusError:
        return status.expired(f"too old resource version: {self._cursor} ({self._store.compacted})")

    async def run(self, response: web.StreamResponse, closed: Callable[[], bool]) -> bool:
        """Send events until the time is up. False if the connection is to be broken instead of ended."""
        if self._asked is None or self._asked == 0 or self._initial:
            await self._send_state(response)
        next_bookmark = time.monotonic() + self._control.bookmark_seconds
        while not closed():
            if self._generation != self._control.generation:
                return False
            if self._number <= self._control.silent_upto:
                await self._store.wait(0.5)
                continue
            try:
                changes = self._store.since(self._cursor)
            except CompactedError:
                await self._send(response, "ERROR", self._gone().status())
                return True
            for change in changes:
                await self._forward(response, change)
                self._cursor = change.version
            if changes:
                continue
            now = time.monotonic()
            if now >= self._deadline or now >= next_bookmark:
                await self._bookmark(response)
                next_bookmark = now + self._control.bookmark_seconds
            if now >= self._deadline:
                return True
            await self._store.wait(min(next_bookmark, self._deadline) - now)
        return False

    async def _send_state(self, response: web.StreamResponse) -> None:
        version = self._store.version
        target = self._target
        for item in self._store.select(target.type.group, target.type.plural, target.namespace):
            if self._selector.matches(item):
                await self._send(response, "ADDED", item)
        self._cursor = version
        if self._initial:
            await self._bookmark(response, {INITIAL_EVENTS_END: "true"})

    async def _bookmark(self, response: web.StreamResponse, annotations: Json | None = None) -> None:
        if not self._bookmarks:
            return
        metadata: Json = {"resourceVersion": str(self._cursor)}
        if annotations:
            metadata["annotations"] = annotations
        kind = self._target.type
        await self._send(
            response, "BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
        )

    async def _forward(self, response: web.StreamResponse, change: Change) -> None:
        kind = self._target.type
        if change.key[:2] != (kind.group, kind.plural):
            return
        if self._target.namespace is not None and change.key[2] != self._target.namespace:
            return
        before, after = self._selector.matches(change.before), self._selector.matches(change.after)
        if after:
            await self._send(response, "MODIFIED" if before else "ADDED", change.last)
        elif before:
            # An object that no longer matches is deleted from this watcher's point of view.
            await self._send(response, "DELETED", change.last)

    @staticmethod
    async def _send(response: web.StreamResponse, kind: str, value: Json) -> None:
        await response.write(json.dumps({"type": kind, "object": value}).encode() + b"\n")
        await asyncio.sleep(0)
