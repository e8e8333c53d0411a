"""The patch formats of the API server double: JSON patch, JSON merge patch, strategic merge patch.

Server-side apply is not offered: a client that tries it is answered 415, as by a server that has it switched off.
"""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch

from holdfast.testing.kubernetes.status import StatusError, bad_request, too_large

Json = dict[str, Any]

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
    """RFC 7386."""
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
    """Owner references are merged by their uid."""
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
