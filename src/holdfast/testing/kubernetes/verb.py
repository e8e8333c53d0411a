"""What the verbs of the API server double do to its store: get, list, create, update, patch, delete.

Optimistic locking, preconditions and the order of the checks follow the generic registry of `k8s.io/apiserver`.
"""

from __future__ import annotations

import base64
import copy
import json
import secrets
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from holdfast.testing.kubernetes import status
from holdfast.testing.kubernetes.object import ResourceType, check_object, decode_object
from holdfast.testing.kubernetes.patch import apply_patch
from holdfast.testing.kubernetes.selector import Selector
from holdfast.testing.kubernetes.store import CompactedError, Key, VersionedStore

Json = dict[str, Any]

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True)
class Target:
    """What a request is about: a type, a namespace (None: all of them, or a type without), a name or nothing."""

    type: ResourceType
    namespace: str | None
    name: str = ""
    query: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The key in the store."""
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
            raise status.invalid_options("CreateOptions", "dryRun", text, "FieldValueNotSupported")
        return wanted == "All"

    @property
    def strict(self) -> bool:
        """Whether unknown fields are refused."""
        return self.query.get("fieldValidation") == "Strict"

    def selector(self) -> Selector:
        """The selectors of a list or a watch."""
        return Selector(self.query.get("labelSelector", ""), self.query.get("fieldSelector", ""))

    def not_found(self) -> status.StatusError:
        """The 404 of this object."""
        return status.not_found(self.type.group, self.type.plural, self.name)

    def conflict(self, why: str = status.MODIFIED) -> status.StatusError:
        """The 409 of this object."""
        return status.conflict(self.type.group, self.type.plural, self.name, why)


def read_version(text: str | None) -> int | None:
    """A resource version as a client sent it; None if it sent none.

    Raises:
        StatusError: 400 if it is no version of this server.
    """
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise status.bad_request(
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
        raise status.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from error


class Verbs:
    """The verbs over one store."""

    def __init__(self, store: VersionedStore) -> None:
        self._store = store

    def get(self, target: Target) -> Json:
        """The newest state of one object."""
        asked = read_version(target.query.get("resourceVersion"))
        if asked is not None and asked > self._store.version:
            raise status.too_large_version(asked, self._store.version)
        found = self._store.get(target.key)
        if found is None:
            raise target.not_found()
        return found

    def collection(self, target: Target) -> Json:
        """A collection, whole or in chunks that all show the version of the first."""
        selector = target.selector()
        limit = read_number(target.query, "limit")
        asked = read_version(target.query.get("resourceVersion"))
        match = target.query.get("resourceVersionMatch", "")
        if match and asked is None:
            text = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
            raise status.invalid_options("ListOptions", "resourceVersionMatch", text, "FieldValueForbidden")
        if asked is not None and asked > self._store.version:
            raise status.too_large_version(asked, self._store.version)
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
                raise status.expired("The resourceVersion for the provided list is too old.") from gone
            error = status.expired(
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
            raise status.bad_request("invalid continue token: continue key is not valid") from error

    def create(self, target: Target, body: object) -> Json:
        """A new object."""
        value = decode_object(target.type, body, target.strict)
        metadata = value["metadata"]
        self._check_namespace(target, metadata)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + "".join(secrets.choice(_SUFFIX) for _ in range(5))
        if metadata.get("resourceVersion"):
            # A real server gives no reason here, only the code.
            raise status.internal_error("resourceVersion should not be set on objects to be created", "")
        new = Target(target.type, target.namespace, metadata.get("name", ""), target.query)
        return self._insert(new, value)

    def _insert(self, target: Target, value: Json) -> Json:
        namespace = target.namespace
        if namespace and self._store.get(("", "namespaces", "", namespace)) is None:
            raise status.not_found("", "namespaces", namespace)
        metadata = value["metadata"]
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
            metadata.pop(name, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        check_object(target.type, value, None)
        if self._store.get(target.key) is not None:
            raise status.already_exists(target.type.group, target.type.plural, target.name)
        if target.dry_run:
            return value
        return self._store.put(target.key, value)

    @staticmethod
    def _check_namespace(target: Target, metadata: Json) -> None:
        if not target.type.namespaced:
            return
        if metadata.setdefault("namespace", target.namespace) != target.namespace:
            raise status.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )

    def update(self, target: Target, body: object) -> tuple[bool, Json]:
        """Replace an object; whether it was created by that, and its state."""
        value = decode_object(target.type, body, target.strict)
        self._check_name(target, value["metadata"])
        old = self._store.get(target.key)
        if old is None:
            if not target.type.create_on_update:
                raise target.not_found()
            if value["metadata"].pop("uid", None):
                raise target.conflict("Precondition failed: UID in precondition, no existing object was found")
            if value["metadata"].get("resourceVersion"):
                raise status.internal_error("resourceVersion should not be set on objects to be created", "")
            return True, self._insert(target, value)
        return False, self._replace(target, old, value)

    def _check_name(self, target: Target, metadata: Json) -> None:
        name = metadata.get("name", "")
        if name != target.name:
            raise status.bad_request(
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
            raise status.invalid(
                target.type.group, target.type.plural, target.name,
                [status.FieldError.invalid("metadata.resourceVersion", 0, "must be specified for an update")],
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
                raise status.conflict(
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
        """Delete all selected objects; the answer lists them."""
        listed = self.collection(target)
        query = {"dryRun": target.query.get("dryRun", "")}
        for item in listed["items"]:
            metadata = item["metadata"]
            self.delete(
                Target(target.type, metadata.get("namespace"), metadata["name"], query),
                {key: value for key, value in options.items() if key != "preconditions"},
            )
        return listed
