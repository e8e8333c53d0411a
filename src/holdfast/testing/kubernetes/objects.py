"""The resource types of the API server: their fields, their validation, and the changes that a write may make."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

# Errors, as `Status` objects. Texts, reasons and codes follow `k8s.io/apimachinery/pkg/api/errors`: clients of the real
# server look at `reason` and `code`.

Json = dict[str, Any]


class StatusError(Exception):
    """A refused request, with the `Status` object of the answer."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.continue_token: str | None = None

    def status(self) -> Json:
        """Return the `Status` object."""
        answer: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        if self.continue_token is not None:
            answer["metadata"]["continue"] = self.continue_token
        answer["message"] = self.message
        if self.reason:
            answer["reason"] = self.reason
        if self.details:
            answer["details"] = self.details
        answer["code"] = self.code
        return answer


def qualified(group: str, name: str) -> str:
    """Return the qualified name: `leases.coordination.k8s.io` or, in the core group, `configmaps`."""
    return f"{name}.{group}" if group else name


def _details(group: str, kind: str, name: str) -> Json:
    details: Json = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    return details


def not_found(group: str, plural: str, name: str) -> StatusError:
    """404: no such object."""
    message = f'{qualified(group, plural)} "{name}" not found'
    return StatusError(404, "NotFound", message, _details(group, plural, name))


def unknown_path() -> StatusError:
    """404: no such resource type or path."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(group: str, plural: str, name: str) -> StatusError:
    """409: the object to be created exists."""
    message = f'{qualified(group, plural)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, _details(group, plural, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(group: str, plural: str, name: str, why: str = MODIFIED) -> StatusError:
    """409: a precondition (resource version, uid) does not hold."""
    message = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(group, plural, name))


def bad_request(message: str) -> StatusError:
    """400: the request cannot be understood."""
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """401: the token is not known."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(
    user: str, verb: str, group: str, plural: str, namespace: str, name: str, subresource: str = ""
) -> StatusError:
    """403: the rules do not allow this user to do it."""
    about = f'{qualified(group, plural)} "{name}"' if name else qualified(group, plural)
    resource = f"{plural}/{subresource}" if subresource else plural
    message = f'{about} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group "{group}"'
    message += f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
    return StatusError(403, "Forbidden", message, _details(group, plural, name))


def method_not_allowed() -> StatusError:
    """405: the resource type does not know this verb."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def not_acceptable(accepted: list[str]) -> StatusError:
    """406: the client accepts no media type that the server can produce."""
    return StatusError(406, "NotAcceptable", f"only the following media types are accepted: {', '.join(accepted)}")


def unsupported_media_type(accepted: list[str]) -> StatusError:
    """415: a body of an unknown type."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", message)


def too_large(message: str) -> StatusError:
    """413: the request is too large."""
    return StatusError(413, "RequestEntityTooLarge", message)


def expired(message: str) -> StatusError:
    """410: the history that the request needs is compacted."""
    return StatusError(410, "Expired", message)


def too_large_version(asked: int, current: int) -> StatusError:
    """504: a version that does not exist yet was requested."""
    details: Json = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    return StatusError(504, "Timeout", f"Too large resource version: {asked}, current: {current}", details)


def internal_error(message: str, reason: str = "InternalError") -> StatusError:
    """500; without a reason where a real server gives none."""
    return StatusError(500, reason, message)


class FieldError:
    """A wrong field of an object, as the causes of a 422 have it."""

    def __init__(self, reason: str, field: str, text: str) -> None:
        self.reason = reason
        self.field = field
        self.text = text

    @classmethod
    def invalid(cls, field: str, value: object, why: str) -> FieldError:
        """Return the error of a value that breaks a rule."""
        shown = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else value
        return cls("FieldValueInvalid", field, f"Invalid value: {shown}: {why}")

    @classmethod
    def required(cls, field: str, why: str) -> FieldError:
        return cls("FieldValueRequired", field, f"Required value: {why}")

    @classmethod
    def too_long(cls, field: str, limit: int) -> FieldError:
        """Return the error of a value above its size limit."""
        return cls("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")

    @classmethod
    def forbidden(cls, field: str, why: str) -> FieldError:
        """Return the error of a change that is not allowed."""
        return cls("FieldValueForbidden", field, f"Forbidden: {why}")


def invalid_options(kind: str, field: str, text: str, reason: str) -> StatusError:
    """422: the parameters of a request break a rule."""
    return invalid("meta.k8s.io", kind, "", [FieldError(reason, field, text)])


def invalid(group: str, kind: str, name: str, errors: list[FieldError]) -> StatusError:
    """422: the object was understood and breaks rules."""
    texts = [f"{error.field}: {error.text}" for error in errors]
    shown = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _details(group, kind, name)
    details["causes"] = [
        {"reason": error.reason, "message": error.text, "field": error.field or "[]"} for error in errors
    ]
    return StatusError(422, "Invalid", f'{qualified(group, kind)} "{name}" is invalid: {shown}', details)


# Fields are decoded strictly, as a typed server does.

Schema = dict[str, Any]


class Kind:
    """The type of a field; `go` is the name that a real server gives it in its errors."""

    go = ""


class Text(Kind):
    """A JSON string."""

    go = "string"


class Bytes(Kind):
    """A base64 string."""

    go = "string"


class Number(Kind):
    """A JSON integer."""

    go = "int32"


class Flag(Kind):
    """A JSON boolean."""

    go = "bool"


class Moment(Kind):
    """A time with microseconds (MicroTime) or seconds (Time)."""

    go = "string"


class Anything(Kind):
    """Any JSON value, kept as it is."""

    go = "object"


@dataclass(frozen=True)
class Mapping:
    """An object from any string to one type."""

    value: type[Kind]


@dataclass(frozen=True)
class Sequence:
    """An array of one type."""

    value: type[Kind]


class Decoder:
    """Reads one JSON object into the fields of its type.

    Attributes:
        unknown: the paths that were dropped.
    """

    def __init__(self, kind: str, version: str) -> None:
        self._kind = kind
        self._version = version
        self.unknown: list[str] = []

    def decode(self, schema: Any, value: object, path: str) -> Any:
        """Return the value as its type; None if it is absent or null."""
        if value is None or schema is Anything:
            return value
        if isinstance(schema, dict):
            return self._object(schema, value, path)
        if isinstance(schema, Mapping):
            entries = self._check(value, dict, "map[string]" + schema.value.go, path)
            return {key: self.decode(schema.value, entry, path) for key, entry in entries.items() if entry is not None}
        if isinstance(schema, Sequence):
            items = self._check(value, list, "[]" + schema.value.go, path)
            return [self.decode(schema.value, item, path) for item in items]
        return self._scalar(schema, value, path)

    def _object(self, schema: Schema, value: object, path: str) -> Json:
        fields = self._check(value, dict, self._kind, path)
        self.unknown.extend(f"{path}.{key}".lstrip(".") for key in fields if key not in schema)
        read = {key: self.decode(schema[key], fields[key], f"{path}.{key}") for key in schema if key in fields}
        # A typed server does not keep empty maps and lists.
        return {
            key: entry
            for key, entry in read.items()
            if entry is not None and (entry or not isinstance(schema[key], (Mapping, Sequence)))
        }

    def _scalar(self, schema: Any, value: object, path: str) -> Any:
        if schema is Flag:
            return self._check(value, bool, "bool", path)
        if schema is Number:
            if isinstance(value, bool):
                raise self._mismatch(value, "int32", path)
            return self._check(value, int, "int32", path)
        text: str = self._check(value, str, schema.go, path)
        if schema is Bytes:
            try:
                base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise bad_request(f"{self._handled()}: illegal base64 data: {error}") from error
        if schema is Moment:
            try:
                datetime.fromisoformat(text)
            except ValueError as error:
                raise bad_request(f'{self._handled()}: parsing time "{text}" as RFC3339 failed') from error
        return text

    def _handled(self) -> str:
        return f'{self._kind} in version "{self._version}" cannot be handled as a {self._kind}'

    def _mismatch(self, value: object, go: str, path: str) -> Exception:
        names = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
        found = names[type(value)]
        field = f"{self._kind}{path}"
        return bad_request(
            f"{self._handled()}: json: cannot unmarshal {found} into Go struct field {field} of type {go}"
        )

    def _check(self, value: object, expected: type, go: str, path: str) -> Any:
        if not isinstance(value, expected):
            raise self._mismatch(value, go, path)
        return value


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
    """One type of objects: names, fields and rules."""

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
        """The API version: `v1` or `coordination.k8s.io/v1`."""
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
