"""The verbs of the API server on its store: get, list, watch, create, update, patch, delete."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from holdfast.testing.kubernetes import objects
from holdfast.testing.kubernetes.objects import ResourceType, check_object, decode_object
from holdfast.testing.kubernetes.store import Change, CompactedError, Key, Selector, VersionedStore, apply_patch

Json = dict[str, Any]

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True)
class Target:
    """The target of a request: a type, a namespace (None: all of them, or a type without), and a name or ""."""

    type: ResourceType
    namespace: str | None
    name: str = ""
    query: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return (self.type.group, self.type.plural, self.namespace or "", self.name)

    @property
    def dry_run(self) -> bool:
        """Whether nothing is to be kept.

        Raises:
            StatusError: 422 for an unknown value.
        """
        wanted = self.query.get("dryRun", "")
        if wanted not in ("", "All"):
            text = f'Unsupported value: ["{wanted}"]: supported values: "All"'
            raise objects.invalid_options("CreateOptions", "dryRun", text, "FieldValueNotSupported")
        return wanted == "All"

    @property
    def strict(self) -> bool:
        return self.query.get("fieldValidation") == "Strict"

    def selector(self) -> Selector:
        return Selector(self.query.get("labelSelector", ""), self.query.get("fieldSelector", ""))

    def not_found(self) -> objects.StatusError:
        return objects.not_found(self.type.group, self.type.plural, self.name)

    def conflict(self, why: str = objects.MODIFIED) -> objects.StatusError:
        return objects.conflict(self.type.group, self.type.plural, self.name, why)


def read_version(text: str | None) -> int | None:
    """A resource version as a client sent it; None if it sent none.

    Raises:
        StatusError: 400 if it is no version of this server.
    """
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise objects.bad_request(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def read_number(query: dict[str, str], name: str) -> int:
    """A whole number of the query, 0 if it is not there.

    Raises:
        StatusError: 400 if it is none.
    """
    text = query.get(name) or "0"
    try:
        return int(text)
    except ValueError as error:
        raise objects.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from error


class Verbs:
    def __init__(self, store: VersionedStore) -> None:
        self._store = store

    def get(self, target: Target) -> Json:
        asked = read_version(target.query.get("resourceVersion"))
        if asked is not None and asked > self._store.version:
            raise objects.too_large_version(asked, self._store.version)
        found = self._store.get(target.key)
        if found is None:
            raise target.not_found()
        return found

    def collection(self, target: Target) -> Json:
        """Return a collection, whole or in chunks that all show the version of the first."""
        selector = target.selector()
        limit = read_number(target.query, "limit")
        asked = read_version(target.query.get("resourceVersion"))
        match = target.query.get("resourceVersionMatch", "")
        if match and asked is None:
            text = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
            raise objects.invalid_options("ListOptions", "resourceVersionMatch", text, "FieldValueForbidden")
        if asked is not None and asked > self._store.version:
            raise objects.too_large_version(asked, self._store.version)
        version, start = self._store.version, ""
        if target.query.get("continue"):
            version, start = self._continuation(target.query["continue"])
        elif match == "Exact" and asked is not None:
            version = asked
        items = self._at(target, selector, version, start)
        metadata: Json = {"resourceVersion": str(version)}
        if limit and len(items) > limit:
            last = items[limit - 1]["metadata"]
            metadata["continue"] = self._token(version, f"{last.get('namespace', '')}/{last['name']}")
            if selector.empty:
                metadata["remainingItemCount"] = len(items) - limit
            items = items[:limit]
        for item in items:
            del item["kind"], item["apiVersion"]
        return {
            "kind": f"{target.type.kind}List", "apiVersion": target.type.api_version, "metadata": metadata,
            "items": items,
        }  # fmt: skip

    def _at(self, target: Target, selector: Selector, version: int, start: str) -> list[Json]:
        now = self._store.version
        try:
            items = self._store.select(
                target.type.group, target.type.plural, target.namespace, None if version == now else version
            )
        except CompactedError as gone:
            if not target.query.get("continue"):
                raise objects.expired("The resourceVersion for the provided list is too old.") from gone
            error = objects.expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new "
                "list without the continue parameter, or use the continue token in this response to retrieve the "
                "remainder of the results. Continuing with the provided token results in an inconsistent list."
            )
            error.continue_token = self._token(now, start)
            raise error from gone
        return [
            item
            for item in items
            if selector.matches(item) and f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}" > start
        ]

    @staticmethod
    def _token(version: int, start: str) -> str:
        text = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": start})
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @staticmethod
    def _continuation(token: str) -> tuple[int, str]:
        try:
            read = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
            return int(read["rv"]), str(read["start"])
        except (ValueError, KeyError, TypeError) as error:
            raise objects.bad_request("invalid continue token: continue key is not valid") from error

    def create(self, target: Target, body: object) -> Json:
        value = decode_object(target.type, body, target.strict)
        metadata = value["metadata"]
        self._check_namespace(target, metadata)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + "".join(secrets.choice(_SUFFIX) for _ in range(5))
        if metadata.get("resourceVersion"):
            # A real server gives no reason here, only the code.
            raise objects.internal_error("resourceVersion should not be set on objects to be created", "")
        new = Target(target.type, target.namespace, metadata.get("name", ""), target.query)
        return self._insert(new, value)

    def _insert(self, target: Target, value: Json) -> Json:
        namespace = target.namespace
        if namespace and self._store.get(("", "namespaces", "", namespace)) is None:
            raise objects.not_found("", "namespaces", namespace)
        metadata = value["metadata"]
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
            metadata.pop(name, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        check_object(target.type, value, None)
        if self._store.get(target.key) is not None:
            raise objects.already_exists(target.type.group, target.type.plural, target.name)
        if target.dry_run:
            return value
        return self._store.put(target.key, value)

    @staticmethod
    def _check_namespace(target: Target, metadata: Json) -> None:
        if not target.type.namespaced:
            return
        if metadata.setdefault("namespace", target.namespace) != target.namespace:
            raise objects.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )

    def update(self, target: Target, body: object) -> tuple[bool, Json]:
        """Replace an object; return whether it was created, and its state."""
        value = decode_object(target.type, body, target.strict)
        self._check_name(target, value["metadata"])
        old = self._store.get(target.key)
        if old is None:
            if not target.type.create_on_update:
                raise target.not_found()
            if value["metadata"].pop("uid", None):
                raise target.conflict("Precondition failed: UID in precondition, no existing object was found")
            if value["metadata"].get("resourceVersion"):
                raise objects.internal_error("resourceVersion should not be set on objects to be created", "")
            return True, self._insert(target, value)
        return False, self._replace(target, old, value)

    def _check_name(self, target: Target, metadata: Json) -> None:
        name = metadata.get("name", "")
        if name != target.name:
            raise objects.bad_request(
                f"the name of the object ({name or 'missing'}) does not match the name on the URL ({target.name})"
            )
        self._check_namespace(target, metadata)

    def _replace(self, target: Target, old: Json, value: Json) -> Json:
        metadata, before = value["metadata"], old["metadata"]
        uid = metadata.get("uid")
        if uid and uid != before["uid"]:
            raise target.conflict(
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before['uid']}"
            )
        version = metadata.get("resourceVersion")
        if not version and not target.type.unconditional_update:
            raise objects.invalid(
                target.type.group, target.type.plural, target.name,
                [objects.FieldError.invalid("metadata.resourceVersion", 0, "must be specified for an update")],
            )  # fmt: skip
        if version and read_version(version) != int(before["resourceVersion"]):
            raise target.conflict()
        for name in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"):
            metadata.pop(name, None)
            if name in before:
                metadata[name] = before[name]
        check_object(target.type, value, old)
        if target.dry_run:
            return value
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._store.delete(target.key)
            return value
        return self._store.put(target.key, value)

    def patch(self, target: Target, content_type: str, body: object) -> Json:
        """Change an object; a resource version or uid in the patch is a precondition."""
        old = self._store.get(target.key)
        if old is None:
            raise target.not_found()
        patched = apply_patch(content_type, old, body)
        value = decode_object(target.type, patched, target.strict)
        self._check_name(target, value["metadata"])
        return self._replace(target, old, value)

    def delete(self, target: Target, options: Json) -> Json:
        """Delete one object, if its preconditions hold."""
        old = self._store.get(target.key)
        if old is None:
            raise target.not_found()
        metadata = old["metadata"]
        for name, key, why in (
            ("UID", "uid", "The object might have been deleted and then recreated"),
            ("ResourceVersion", "resourceVersion", "The object might have been modified"),
        ):
            wanted = (options.get("preconditions") or {}).get(key)
            if wanted is not None and wanted != metadata[key]:
                # Here, and only here, a real server names the kind instead of the plural.
                raise objects.conflict(
                    target.type.group,
                    target.type.kind,
                    target.name,
                    f"the {name} in the precondition ({wanted}) does not match the {name} in record "
                    f"({metadata[key]}). {why}",
                )
        if not target.dry_run and not options.get("dryRun"):
            self._remove(target, old)
        if metadata.get("finalizers"):
            return self._store.get(target.key) or old
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {
                "name": target.name, "kind": target.type.plural, "uid": metadata["uid"],
                **({"group": target.type.group} if target.type.group else {}),
            },
        }  # fmt: skip

    def _remove(self, target: Target, old: Json) -> None:
        if old["metadata"].get("finalizers"):
            marked = copy.deepcopy(old)
            marked["metadata"].setdefault("deletionTimestamp", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
            marked["metadata"].setdefault("deletionGracePeriodSeconds", 0)
            self._store.put(target.key, marked)
            return
        self._store.delete(target.key)
        if target.type.plural == "namespaces":
            for key in self._store.keys_in(target.name):
                self._store.delete(key)

    def delete_collection(self, target: Target, options: Json) -> Json:
        """Delete all selected objects, and return them as a list."""
        listed = self.collection(target)
        query = {"dryRun": target.query.get("dryRun", "")}
        for item in listed["items"]:
            metadata = item["metadata"]
            self.delete(
                Target(target.type, metadata.get("namespace"), metadata["name"], query),
                {key: value for key, value in options.items() if key != "preconditions"},
            )
        return listed


# Watches: from a version, with bookmarks, time limits and compacted history.

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_DEFAULT_SECONDS = 1800.0


@dataclass
class WatchControl:
    """The switches of a test for all watches.

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
            raise objects.invalid_options("ListOptions", "resourceVersionMatch", text, "FieldValueForbidden")
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

    def _gone(self) -> objects.StatusError:
        return objects.expired(f"too old resource version: {self._cursor} ({self._store.compacted})")

    async def run(self, response: web.StreamResponse, closed: Callable[[], bool]) -> bool:
        """Send events until the time is up; return False if the connection is to be broken instead of ended."""
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
