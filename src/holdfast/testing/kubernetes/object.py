"""The resource types of the API server double: what their fields are, what is valid, what a write may change.

A typed API server reads JSON into the fields that it knows: unknown ones are dropped (or refused when the client asks
for strict validation), a value of a wrong type is a 400, a value that breaks a rule is a 422 that names the field.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.testing.kubernetes.decode import (
    Anything,
    Bytes,
    Decoder,
    Flag,
    Mapping,
    Moment,
    Number,
    Schema,
    Sequence,
    Text,
)
from holdfast.testing.kubernetes.status import FieldError, bad_request, invalid

Json = dict[str, Any]

MAX_OBJECT_DATA = 1024 * 1024
MAX_ANNOTATIONS = 256 * 1024

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_KEY = "[-._a-zA-Z0-9]+"

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)


METADATA: Schema = {
    "name": Text,
    "generateName": Text,
    "namespace": Text,
    "selfLink": Text,
    "uid": Text,
    "resourceVersion": Text,
    "generation": Number,
    "creationTimestamp": Moment,
    "deletionTimestamp": Moment,
    "deletionGracePeriodSeconds": Number,
    "labels": Mapping(Text),
    "annotations": Mapping(Text),
    "ownerReferences": Sequence(Anything),
    "finalizers": Sequence(Text),
    "managedFields": Sequence(Anything),
}
LEASE_SPEC: Schema = {
    "holderIdentity": Text,
    "leaseDurationSeconds": Number,
    "acquireTime": Moment,
    "renewTime": Moment,
    "leaseTransitions": Number,
    "strategy": Text,
    "preferredHolder": Text,
}


def _config_map(value: Json, old: Json | None) -> list[FieldError]:
    errors = []
    data, binary = value.get("data", {}), value.get("binaryData", {})
    size = 0
    for field, entries in (("data", data), ("binaryData", binary)):
        for key, entry in entries.items():
            if len(key) > 253:
                errors.append(FieldError.invalid(f"{field}[{key}]", key, "must be no more than 253 characters"))
            elif not re.fullmatch(_KEY, key) or key == "." or key.startswith(".."):
                why = (
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
                    f"'KEY_NAME',  or 'key-name', regex used for validation is '{_KEY}')"
                )
                errors.append(FieldError.invalid(f"{field}[{key}]", key, why))
            size += len(base64.b64decode(entry)) if field == "binaryData" else len(entry.encode())
    for key in sorted(set(data) & set(binary)):
        errors.append(FieldError.invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
    if size > MAX_OBJECT_DATA:
        errors.append(FieldError.too_long("", MAX_OBJECT_DATA))
    if old is not None and old.get("immutable"):
        for field in ("immutable", "data", "binaryData"):
            if value.get(field) != old.get(field):
                errors.append(FieldError.forbidden(field, "field is immutable when `immutable` is set"))
    return errors


def _lease(value: Json, _old: Json | None) -> list[FieldError]:
    spec = value.get("spec", {})
    errors = []
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        errors.append(FieldError.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    if transitions is not None and transitions < 0:
        why = "must be greater than or equal to 0"
        errors.append(FieldError.invalid("spec.leaseTransitions", transitions, why))
    return errors


def _role_binding(value: Json, old: Json | None) -> list[FieldError]:
    errors = []
    for number, subject in enumerate(value.get("subjects", [])):
        field = f"subjects[{number}]"
        if subject.get("kind") not in ("ServiceAccount", "User", "Group"):
            errors.append(FieldError.invalid(f"{field}.kind", subject.get("kind"), "must be a kind of subject"))
        if not subject.get("name"):
            errors.append(FieldError.required(f"{field}.name", ""))
        if subject.get("kind") == "ServiceAccount" and not subject.get("namespace"):
            errors.append(FieldError.required(f"{field}.namespace", ""))
    reference = value.get("roleRef") or {}
    if reference.get("kind") not in ("Role", "ClusterRole") or not reference.get("name"):
        errors.append(FieldError.invalid("roleRef", reference, "must name a Role or a ClusterRole"))
    if old is not None and old.get("roleRef") != reference:
        errors.append(FieldError.invalid("roleRef", reference, "cannot change roleRef"))
    return errors


def _nothing(_value: Json, _old: Json | None) -> list[FieldError]:
    return []


@dataclass(frozen=True)
class ResourceType:
    """One type of objects: its names, its fields, its rules."""

    group: str
    version: str
    plural: str
    kind: str
    schema: Schema
    validate: Callable[[Json, Json | None], list[FieldError]] = _nothing
    namespaced: bool = True
    create_on_update: bool = False
    unconditional_update: bool = True
    dns_label: bool = False

    @property
    def api_version(self) -> str:
        """`v1` or `coordination.k8s.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version


RBAC = "rbac.authorization.k8s.io"
TYPES = (
    ResourceType("", "v1", "namespaces", "Namespace", {"spec": Anything}, namespaced=False, dns_label=True),
    ResourceType(
        "", "v1", "configmaps", "ConfigMap",
        {"immutable": Flag, "data": Mapping(Text), "binaryData": Mapping(Bytes)}, _config_map,
    ),
    ResourceType("", "v1", "serviceaccounts", "ServiceAccount", {"automountServiceAccountToken": Flag}),
    ResourceType(
        "coordination.k8s.io", "v1", "leases", "Lease", {"spec": LEASE_SPEC}, _lease,
        create_on_update=True, unconditional_update=False,
    ),
    ResourceType(RBAC, "v1", "roles", "Role", {"rules": Sequence(Anything)}),
    ResourceType(
        RBAC, "v1", "rolebindings", "RoleBinding",
        {"roleRef": Anything, "subjects": Sequence(Anything)}, _role_binding,
    ),
)  # fmt: skip


def decode_object(kind: ResourceType, body: object, strict: bool) -> Json:
    """Read a body as an object of a type.

    Raises:
        StatusError: 400 for a wrong kind, a wrong type of a value or, with `strict`, an unknown field.
    """
    if not isinstance(body, dict):
        raise bad_request("couldn't get version/kind; json parse error: the body is not an object")
    named, version = body.get("kind", kind.kind), body.get("apiVersion", kind.api_version)
    if version != kind.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({kind.api_version})"
        )
    if named != kind.kind:
        raise bad_request(f'{named} in version "{version}" cannot be handled as a {kind.kind}: kinds do not match')
    decoder = Decoder(kind.kind, kind.version)
    schema = {"apiVersion": Text, "kind": Text, "metadata": METADATA, **kind.schema}
    value: Json = decoder.decode(schema, body, "")
    if strict and decoder.unknown:
        unknown = ", ".join(f'unknown field "{path}"' for path in decoder.unknown)
        raise bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {unknown}')
    value["kind"], value["apiVersion"] = kind.kind, kind.api_version
    value.setdefault("metadata", {}).pop("managedFields", None)
    return value


def check_object(kind: ResourceType, value: Json, old: Json | None) -> None:
    """Refuse an object that breaks a rule of its type.

    Raises:
        StatusError: 422, with all broken rules.
    """
    errors = [*_metadata(kind, value["metadata"]), *kind.validate(value, old)]
    if errors:
        raise invalid(kind.group, kind.kind, value["metadata"].get("name", ""), errors)


def _metadata(kind: ResourceType, metadata: Json) -> list[FieldError]:
    errors = []
    name = metadata.get("name", "")
    pattern, rule, limit = (_LABEL, LABEL_RULE, 63) if kind.dns_label else (_SUBDOMAIN, SUBDOMAIN_RULE, 253)
    if not name:
        errors.append(FieldError.required("metadata.name", "name or generateName is required"))
    elif len(name) > limit:
        errors.append(FieldError.invalid("metadata.name", name, f"must be no more than {limit} bytes"))
    elif kind.group == RBAC:
        # Names of roles are path segments only: system:node is one.
        if "/" in name or "%" in name:
            errors.append(FieldError.invalid("metadata.name", name, "may not contain '/' or '%'"))
    elif not re.fullmatch(pattern, name):
        errors.append(FieldError.invalid("metadata.name", name, rule))
    for key, value in metadata.get("labels", {}).items():
        errors.extend(_qualified_name(key, "metadata.labels"))
        if value and (len(value) > 63 or not re.fullmatch(_QUALIFIED, value)):
            why = "a valid label must be empty or consist of at most 63 alphanumeric characters, '-', '_' or '.'"
            errors.append(FieldError.invalid("metadata.labels", value, why))
    annotations = metadata.get("annotations", {})
    for key in annotations:
        errors.extend(_qualified_name(key.lower(), "metadata.annotations"))
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        errors.append(FieldError.too_long("metadata.annotations", MAX_ANNOTATIONS))
    return errors


def _qualified_name(key: str, field: str) -> list[FieldError]:
    prefix, slash, name = key.rpartition("/")
    good = bool(name) and len(name) <= 63 and re.fullmatch(_QUALIFIED, name) is not None
    if slash:
        good = good and len(prefix) <= 253 and re.fullmatch(_SUBDOMAIN, prefix) is not None
    if good:
        return []
    why = (
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
        f"alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used is '{_QUALIFIED}')"
    )
    return [FieldError.invalid(field, key, why)]
