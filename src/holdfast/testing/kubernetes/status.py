"""The errors of the API server double, as the `Status` objects that a Kubernetes API server answers with.

Texts, reasons and codes follow `k8s.io/apimachinery/pkg/api/errors`: clients of the real server look at `reason`
and `code`, people look at `message`, and both must be able to learn here what they will meet there.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class StatusError(Exception):
    """A request that the API server refuses, with the `Status` object that it answers."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.continue_token: str | None = None

    def status(self) -> Json:
        """The `Status` object."""
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
    """`leases.coordination.k8s.io` or, in the core group, `configmaps`."""
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
    """409: create of an object that is there."""
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
    """406: the client accepts nothing that the server can produce."""
    return StatusError(406, "NotAcceptable", f"only the following media types are accepted: {', '.join(accepted)}")


def unsupported_media_type(accepted: list[str]) -> StatusError:
    """415: a body of an unknown type."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", message)


def too_large(message: str) -> StatusError:
    """413: the request is larger than the server reads."""
    return StatusError(413, "RequestEntityTooLarge", message)


def expired(message: str) -> StatusError:
    """410: the history that the request needs is compacted."""
    return StatusError(410, "Expired", message)


def too_large_version(asked: int, current: int) -> StatusError:
    """504: a version that does not exist yet was asked for."""
    details: Json = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    return StatusError(504, "Timeout", f"Too large resource version: {asked}, current: {current}", details)


def internal_error(message: str, reason: str = "InternalError") -> StatusError:
    """500: without a reason where the server itself gives none."""
    return StatusError(500, reason, message)


class FieldError:
    """One wrong field of an object, as it appears in the causes of a 422."""

    def __init__(self, reason: str, field: str, text: str) -> None:
        self.reason = reason
        self.field = field
        self.text = text

    @classmethod
    def invalid(cls, field: str, value: object, why: str) -> FieldError:
        """A value that breaks a rule."""
        shown = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else value
        return cls("FieldValueInvalid", field, f"Invalid value: {shown}: {why}")

    @classmethod
    def required(cls, field: str, why: str) -> FieldError:
        """A missing value."""
        return cls("FieldValueRequired", field, f"Required value: {why}")

    @classmethod
    def too_long(cls, field: str, limit: int) -> FieldError:
        """A value above its size limit."""
        return cls("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")

    @classmethod
    def forbidden(cls, field: str, why: str) -> FieldError:
        """A change that is not allowed."""
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
