"""The versioned store of the API server: one counter over all objects, a history, compaction; users and patches."""

from __future__ import annotations

import asyncio
import copy
import random
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonpatch

from holdfast.testing.kubernetes.objects import RBAC, StatusError, bad_request, forbidden, too_large, unauthorized

Json = dict[str, Any]
Key = tuple[str, str, str, str]
"""Group, plural, namespace ("" for objects of the cluster), name."""


class CompactedError(Exception):
    """The history before `version` was requested, and is compacted."""

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
        """The object after the change; of a deletion its last state, under the version of the deletion."""
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
        """Return a copy of the newest state of an object."""
        found = self._objects.get(key)
        return copy.deepcopy(found) if found is not None else None

    def select(self, group: str, plural: str, namespace: str | None, version: int | None = None) -> list[Json]:
        """Return the objects of a type in key order, now or as they were at `version`; namespace None for all."""
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
        return [key for key in self._objects if key[2] == namespace]

    def put(self, key: Key, value: Json) -> Json:
        """Write an object, which gets the next version. Writing an unchanged object changes nothing."""
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
        """Delete an existing object, and return its last state."""
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
        """Wake all waiters."""
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
        """Discard the history up to `version` (default: all of it)."""
        upto = self.version if version is None else min(version, self.version)
        self._base = self._at(upto)
        self._history = [change for change in self._history if change.version > upto]
        self.compacted = upto
        self.wake()


# Authorization: bearer tokens, Roles and RoleBindings, access reviews. Rules are read from the objects in the store at
# each request, as the real authorizer does, so a changed Role takes effect at once.


@dataclass(frozen=True)
class User:
    """An authenticated user."""

    name: str
    groups: tuple[str, ...]


ADMINISTRATOR = User("kubernetes-admin", ("system:masters", "system:authenticated"))
ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


def service_account(namespace: str, name: str) -> User:
    """Return the user of a service account's token."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


@dataclass(frozen=True)
class Attributes:
    """The operation of a request, as the authorizer sees it."""

    verb: str
    group: str
    plural: str
    namespace: str
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """The resource with its subresource: `serviceaccounts/token` or `configmaps`."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


class Access:
    """Tokens and rules."""

    def __init__(self, store: VersionedStore) -> None:
        self._store = store
        self._tokens: dict[str, User] = {}

    def issue(self, user: User) -> str:
        """Return a new token for a user."""
        token = secrets.token_urlsafe(24)
        self._tokens[token] = user
        return token

    def revoke(self, token: str) -> None:
        self._tokens.pop(token, None)

    def authenticate(self, authorization: str | None) -> User:
        """The user of an `Authorization` header.

        Raises:
            StatusError: 401 for a token that is not known. No token at all is the anonymous user.
        """
        if authorization is None:
            return ANONYMOUS
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or token not in self._tokens:
            raise unauthorized()
        return self._tokens[token]

    def authorize(self, user: User, wanted: Attributes) -> None:
        """Let the request pass.

        Raises:
            StatusError: 403 if no rule allows it.
        """
        if not self.allows(user, wanted):
            raise forbidden(
                user.name, wanted.verb, wanted.group, wanted.plural, wanted.namespace, wanted.name, wanted.subresource
            )

    def allows(self, user: User, wanted: Attributes) -> bool:
        """Return whether a rule allows it: the administrator's group, a role of the namespace, or an access review."""
        if "system:masters" in user.groups:
            return True
        if wanted.plural == "selfsubjectaccessreviews":
            return "system:authenticated" in user.groups
        return any(_matches(rule, wanted) for rule in self._rules(user, wanted.namespace))

    def _rules(self, user: User, namespace: str) -> list[Json]:
        if not namespace:
            return []
        rules: list[Json] = []
        for binding in self._store.select(RBAC, "rolebindings", namespace):
            if any(_is_subject(subject, user) for subject in binding.get("subjects", [])):
                role = self._store.get((RBAC, "roles", namespace, binding["roleRef"]["name"]))
                if binding["roleRef"].get("kind") == "Role" and role is not None:
                    rules.extend(role.get("rules", []))
        return rules


def _is_subject(subject: Json, user: User) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject.get('namespace')}:{subject['name']}"
    if subject["kind"] == "Group":
        return subject["name"] in user.groups
    return bool(subject["kind"] == "User" and subject["name"] == user.name)


def _matches(rule: Json, wanted: Attributes) -> bool:
    def holds(allowed: list[str], value: str) -> bool:
        return "*" in allowed or value in allowed

    names = rule.get("resourceNames", [])
    return (
        holds(rule.get("verbs", []), wanted.verb)
        and holds(rule.get("apiGroups", []), wanted.group)
        and holds(rule.get("resources", []), wanted.resource)
        and (not names or wanted.name in names)
    )


# Patches: JSON patch, JSON merge patch, strategic merge patch. Server-side apply is answered with 415, as by a server
# that has it disabled.

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
PATCH_TYPES = [JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH]

_MAX_OPERATIONS = 10_000


def apply_patch(content_type: str, current: Json, patch: object) -> object:
    """The object after the patch; `current` stays as it is.

    Raises:
        StatusError: 400 if the patch is none of its type, 422 if it cannot be applied to this object.
    """
    if content_type == JSON_PATCH:
        return _json_patch(current, patch)
    if not isinstance(patch, dict):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
        )
    if content_type == MERGE_PATCH:
        return _merge(copy.deepcopy(current), patch)
    return _strategic(copy.deepcopy(current), patch, "")


def _json_patch(current: Json, patch: object) -> object:
    if not isinstance(patch, list):
        raise bad_request("error decoding patch: a JSON patch must be an array of operations")
    if len(patch) > _MAX_OPERATIONS:
        raise too_large(f"The allowed maximum operations in a JSON patch is {_MAX_OPERATIONS}, got {len(patch)}")
    try:
        return jsonpatch.JsonPatch(patch).apply(current)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"error decoding patch: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        # A real server does not say either which operation failed.
        raise StatusError(422, "Invalid", "the server rejected our request due to an error in our request") from error


def _merge(current: object, patch: object) -> object:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = current if isinstance(current, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
_SET_ORDER = "$setElementOrder/"


def _strategic(current: Json, patch: Json, path: str) -> Json:
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"Unknown patch type found: {directive}")
    for key, value in patch.items():
        where = f"{path}.{key}".lstrip(".")
        if key == "$patch" or key.startswith(_SET_ORDER):
            continue
        if key.startswith(_DELETE_PRIMITIVES):
            target = key.removeprefix(_DELETE_PRIMITIVES)
            current[target] = [item for item in current.get(target, []) if item not in value]
        elif value is None:
            current.pop(key, None)
        elif isinstance(value, dict):
            before = current.get(key)
            current[key] = _strategic(before if isinstance(before, dict) else {}, value, where)
        elif where == "metadata.finalizers" and isinstance(value, list):
            current[key] = [*current.get(key, []), *(item for item in value if item not in current.get(key, []))]
        elif where == "metadata.ownerReferences" and isinstance(value, list):
            current[key] = _owner_references(current.get(key, []), value)
        else:
            current[key] = value
    return current


def _owner_references(current: list[Json], patch: list[Json]) -> list[Json]:
    """Merge owner references by their uid."""
    if any(item == {"$patch": "replace"} for item in patch):
        return [item for item in patch if "$patch" not in item]
    merged = {item["uid"]: item for item in current}
    for item in patch:
        if "uid" not in item:
            raise bad_request("map: does not contain declared merge key: uid")
        if item.get("$patch") == "delete":
            merged.pop(item["uid"], None)
        else:
            merged[item["uid"]] = {**merged.get(item["uid"], {}), **item}
    return list(merged.values())


Requirement = Callable[[dict[str, str]], bool]

_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")
_FIELDS = ("metadata.name", "metadata.namespace")


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _label_requirement(part: str) -> Requirement:
    found = _SET.match(part)
    if found:
        key, operator = found[1], found[2]
        values = {value.strip() for value in found[3].split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    for operator in ("!=", "==", "="):
        left, sign, right = part.partition(operator)
        if sign:
            left, right = left.strip(), right.strip()
            if operator == "!=":
                return lambda labels: labels.get(left) != right
            return lambda labels: labels.get(left) == right
    if re.search(r"[\s(){}<>]", part):
        raise bad_request(f'unable to parse requirement: found "{part}"')
    if part.startswith("!"):
        return lambda labels: part[1:] not in labels
    return lambda labels: part in labels


class Selector:
    """Which objects a list or a watch is about.

    Raises:
        StatusError: 400 for a selector that cannot be read or a field that cannot be selected by.
    """

    def __init__(self, labels: str = "", fields: str = "") -> None:
        self._labels = [_label_requirement(part) for part in _split(labels)]
        self._fields: list[tuple[str, bool, str]] = []
        for part in _split(fields):
            left, sign, right = next(
                (found for found in (part.partition(operator) for operator in ("!=", "==", "=")) if found[1]),
                (part, "", ""),
            )
            if not sign:
                raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
            if left not in _FIELDS:
                raise bad_request(f"field label not supported: {left}")
            self._fields.append((left.removeprefix("metadata."), sign != "!=", right))

    @property
    def empty(self) -> bool:
        return not self._labels and not self._fields

    @property
    def name(self) -> str:
        """The only name that it selects, or "": such a request is authorized for that name."""
        return next((value for field, equal, value in self._fields if field == "name" and equal), "")

    def matches(self, value: Json | None) -> bool:
        """Return whether the object is selected; None never is."""
        if value is None:
            return False
        metadata = value["metadata"]
        labels = metadata.get("labels", {})
        return all(wanted(labels) for wanted in self._labels) and all(
            (metadata.get(field, "") == text) == equal for field, equal, text in self._fields
        )
