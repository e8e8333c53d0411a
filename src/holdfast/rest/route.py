"""Routes: paths with the JSON schemas of their requests and responses, the OpenAPI document, and dispatch of requests.

Requests are checked against their declaration before a handler runs, so the document cannot differ from what is
accepted. Responses are checked by tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

from holdfast import __version__
from holdfast.rest.http import HttpError, Request, Response, probe_response, split_target

# JSON schemas, and the check of a value against the part of JSON Schema that is used here.

Schema = Mapping[str, Any]

NAME: Final = "x-name"
"""The name of a schema in the components of the OpenAPI document, to which its uses refer."""
REFUSED: Final = "x-refused"
"""Values that are refused with a status and a message of their own."""
FORM: Final = "x-form"
"""A description of a pattern, for error messages."""

ANY: Final[Schema] = {}
FLAG: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
STRING: Final[Schema] = {"type": "string"}
TEXT: Final[Schema] = {"type": "string", "pattern": r"\S"}
"""A string that is not blank."""
_SHOWN: Final = 80
Handler = Callable[[Request], Response]
_Method = TypeVar("_Method", bound=Callable[..., Response])
_SERVES: Final = "_holdfast_serves"
_PARAMETER: Final = re.compile(r":([a-z]+)")
JSON: Final = "application/json"
_VERSION: Final = "3.1.0"
_WITHOUT_BODY: Final = frozenset({"GET", "DELETE"})
_ALWAYS: Final = (401, 500, 503)
_TOKEN: Final = "token"  # noqa: S105 - a parameter's name


def integer(least: int | None = None, most: int | None = None) -> Schema:
    bounds = {"minimum": least, "maximum": most}
    return {**INTEGER, **{name: bound for name, bound in bounds.items() if bound is not None}}


def matching(pattern: str, what: str | None = None) -> Schema:
    """A string that matches a pattern.

    Args:
        pattern: Regular expression from the first character on; to the last one if it ends with `$`.
        what: A description for error messages.
    """
    return {"type": "string", "pattern": f"^{pattern}", **({FORM: what} if what else {})}


def choice(*values: str, refused: Mapping[str, tuple[int, str]] | None = None) -> Schema:
    """One of several strings.

    Args:
        values: The accepted values.
        refused: Values that clients may try, each with the status and the message of the refusal.
    """
    others = {REFUSED: {value: list(why) for value, why in refused.items()}} if refused else {}
    return {"type": "string", "enum": list(values), **others}


def array(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def mapping(of: Schema, least: int = 0) -> Schema:
    """An object with arbitrary field names, of at least so many fields."""
    return {"type": "object", "additionalProperties": of, **({"minProperties": least} if least else {})}


def record(fields: Mapping[str, Schema] | None = None, optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with required and optional fields, and no others."""
    needed, others = fields or {}, optional or {}
    return {
        "type": "object",
        "properties": {**needed, **others},
        "additionalProperties": False,
        **({"required": list(needed)} if needed else {}),
    }


def nullable(of: Schema) -> Schema:
    return {"anyOf": [of, {"type": "null"}]}


def any_of(*kinds: Schema) -> Schema:
    return {"anyOf": list(kinds)}


def component(name: str, schema: Schema) -> Schema:
    """A schema that is a component of the OpenAPI document under this name."""
    return {**schema, NAME: name}


def described(description: str, schema: Schema) -> Schema:
    return {**schema, "description": description}


def check(value: Any, schema: Schema, name: str = "The body") -> None:
    """Check a value of a request against a schema.

    Args:
        value: The value.
        schema: The schema.
        name: The name of the value in error messages.

    Raises:
        HttpError: The value does not match.
    """
    kind = schema.get("type")
    if kind == "object":
        _check_object(value, schema, name)
    elif kind == "array":
        if not isinstance(value, list):
            raise _wrong(name, "a list", value)
        for index, item in enumerate(value):
            check(item, schema["items"], f"{name}[{index}]")
    elif kind == "string":
        _check_text(value, schema, name)
    elif kind == "boolean":
        if not isinstance(value, bool):
            raise _wrong(name, "true or false", value)
    elif kind == "integer":
        least, most = schema.get("minimum"), schema.get("maximum")
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or (least is not None and value < least) or (most is not None and value > most):
            raise _wrong(name, f"an integer{_between(least, most)}", value)
    else:
        assert not schema, f"nothing checks {schema!r}"


def parse_query(texts: Mapping[str, str], schema: Schema) -> dict[str, Any]:
    """Convert the query of a request, whose values arrive as strings, and check it.

    Raises:
        HttpError: The query does not match the schema.
    """
    found = {
        name: int(text) if _is_number(schema, name) and re.fullmatch("-?[0-9]{1,18}", text) else text
        for name, text in texts.items()
    }
    check(found, schema, "The query")
    return found


def _is_number(schema: Schema, name: str) -> bool:
    return bool(schema["properties"].get(name, ANY).get("type") == "integer")


def _check_object(value: Any, schema: Schema, name: str) -> None:
    if not isinstance(value, Mapping):
        raise _wrong(name, "an object", value)
    known, others = schema.get("properties", {}), schema.get("additionalProperties", False)
    for key, entry in value.items():
        if key in known:
            check(entry, known[key], key)
        elif others is False:
            raise HttpError(400, f"The field {key!r:.{_SHOWN}} is unknown; known are {sorted(known)!r}.")
        else:
            check(entry, others, f"{key!r:.{_SHOWN}}")
    for key in schema.get("required", ()):
        if key not in value:
            raise HttpError(400, f"{name} has no field {key!r}.")
    if len(value) < schema.get("minProperties", 0):
        raise HttpError(400, f"{name} is empty.")


def _check_text(value: Any, schema: Schema, name: str) -> None:
    if isinstance(value, str) and value in schema.get(REFUSED, ()):
        status, reason = schema[REFUSED][value]
        raise HttpError(status, reason)
    if "enum" in schema:
        if value not in schema["enum"]:
            raise _wrong(name, f"one of {', '.join(schema['enum'])}", value)
    elif not isinstance(value, str) or not _matches(schema.get("pattern"), value):
        pattern = schema.get("pattern")
        kinds = {None: "a string", r"\S": "a string that is not blank"}
        raise _wrong(name, schema.get(FORM) or kinds.get(pattern, f"a string of the form {pattern}"), value)


def _matches(pattern: str | None, text: str) -> bool:
    if pattern is None:
        return True
    is_whole = pattern.startswith("^") and pattern.endswith("$")
    return (re.fullmatch(pattern[1:-1], text) if is_whole else re.search(pattern, text)) is not None


def _between(least: int | None, most: int | None) -> str:
    bounds = [f"at least {least}"] if least is not None else []
    bounds += [f"at most {most}"] if most is not None else []
    return f" of {' and '.join(bounds)}" if bounds else ""


def _wrong(name: str, what: str, value: Any) -> HttpError:
    return HttpError(400, f"{name} is {what}, not {value!r:.{_SHOWN}}.")


_NOTHING: Final[Schema] = record()
_ID: Final = matching("[0-9A-Za-z-]{1,64}$", "1 to 64 letters, digits and '-'")
PARAMETERS: Final[dict[str, Schema]] = {
    "jobid": matching("[0-9a-f]{32}$"),
    "checkpointid": matching("[0-9]{1,19}$"),
    "triggerid": _ID,
    "snapshotid": matching("(?:latest|[0-9]{1,19})$", "the id of a checkpoint, or 'latest'"),
    "otherid": matching("(?:latest|[0-9]{1,19})$", "the id of a checkpoint, or 'latest'"),
}
"""The schemas of path parameters; all others are strings."""
TRIGGER_ID: Final = _ID


@dataclass(frozen=True)
class Route:
    """A path with its method, schemas and handler.

    Attributes:
        method: GET, POST, PUT, PATCH or DELETE.
        path: Such as ``/jobs/:jobid``; `*` matches anything.
        answer: The schema of the response.
        handler: Handles requests; None in a declaration that has no handler yet.
        status: The status of the response.
        query: The schema of the query, an object; None for any query, unchecked.
        body: The schema of the body; None for any body, which the handler checks.
        media_type: Media type of the response.
        refusals: Statuses of errors besides those that every path may have.
        summary: A sentence for the OpenAPI document.
        is_open: Whether no token is required.
    """

    method: str
    path: str
    answer: Schema = field(default_factory=dict, hash=False)
    handler: Handler | None = None
    status: int = 200
    query: Schema | None = field(default=None, hash=False)
    body: Schema | None = field(default=None, hash=False)
    media_type: str = JSON
    refusals: tuple[int, ...] = ()
    summary: str = ""
    is_open: bool = False

    @property
    def parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)

    @property
    def is_refusal(self) -> bool:
        """Whether every response is an error with a reason."""
        return self.status >= 500

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key: specific paths come before patterns that match them too."""
        return "*" in self.path, [(part.startswith(":"), part) for part in self.path.split("/")]

    @property
    def pattern(self) -> re.Pattern[str]:
        path = _PARAMETER.sub(lambda found: _part(found[1]), self.path.replace("*", ".*"))
        return re.compile(f"(?:/v1)?{path}/?")

    def with_handler(self, handler: Handler) -> Route:
        return replace(self, handler=handler)

    def respond(self, path: Mapping[str, str], query: Mapping[str, str], body: Mapping[str, Any]) -> Response:
        """Check a request and call the handler.

        Args:
            path: The path parameters, still quoted.
            query: The query.
            body: The body.

        Raises:
            HttpError: The request does not match its schemas, or the handler refuses it.
        """
        assert self.handler is not None
        parts = {name: unquote(text) for name, text in path.items()}
        numbers = dict(query) if self.query is None else parse_query(query, self.query)
        if self.body is not None:
            check(body, self.body)
        return self.handler(Request(parts, numbers, body))


def serves(
    method: str,
    path: str,
    answer: Schema,
    *,
    status: int = 200,
    query: Schema = _NOTHING,
    body: Schema | None = None,
    media_type: str = JSON,
    refusals: tuple[int, ...] = (),
    is_open: bool = False,
) -> Callable[[_Method], _Method]:
    """Declare the route of an API's method; the first line of its docstring is the summary in the OpenAPI document.

    Args:
        method: GET, POST, PUT, PATCH or DELETE.
        path: Such as ``/jobs/:jobid``.
        answer: The schema of the response.
        status: The status of the response.
        query: The schema of the query.
        body: The schema of the body; None for none.
        media_type: Media type of the response.
        refusals: Statuses of errors besides those that every path may have.
        is_open: Whether no token is required.
    """

    def declare(handler: _Method) -> _Method:
        summary = (handler.__doc__ or "").strip().partition("\n")[0]
        taken = _NOTHING if body is None else body
        route = Route(method, path, answer, None, status, query, taken, media_type, refusals, summary, is_open)
        setattr(handler, _SERVES, route)
        return handler

    return declare


def declared_routes(kind: type) -> Iterator[tuple[str, Route]]:
    """Yield the declared routes of an API class with the names of their methods."""
    for name, member in vars(kind).items():
        route = getattr(member, _SERVES, None)
        if route is not None:
            yield name, route


def bind_routes(api: object) -> Iterator[Route]:
    """Yield the routes of an API object with their handlers."""
    for name, route in declared_routes(type(api)):
        yield route.with_handler(getattr(api, name))


def _part(parameter: str) -> str:
    form = PARAMETERS.get(parameter)
    return f"(?P<{parameter}>{'[^/]+' if form is None else form['pattern'].strip('^$')})"


def parameter_schema(parameter: str) -> Schema:
    return PARAMETERS.get(parameter, TEXT)


# The OpenAPI document, made from the routes alone.

_ERRORS: Final = component("Errors", record({"errors": array(STRING)}))


def openapi_document(routes: Iterable[Route], absent: Mapping[str, str]) -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        routes: The served routes.
        absent: Flink's paths that are not served, with the reason.
    """
    components: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = re.sub(r":([a-z]+)", r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, components)
    return {
        "openapi": _VERSION,
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "Jobs, their checkpoints and their numbers; under the paths of Flink's REST interface where "
            "it has them.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {_TOKEN: {"type": "http", "scheme": "bearer"}},
        },
        "security": [{_TOKEN: []}],
        "x-absent": dict(absent),
    }


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    statuses = [*_ALWAYS[route.is_open :], *route.refusals]
    if route.query is None or route.query["properties"] or route.body is None or _has_body(route):
        statuses.append(400)
    if route.parameters:
        statuses.append(404)
    refusals = {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "content": {JSON: {"schema": _with_references(_ERRORS, components)}},
        }
        for status in sorted(set(statuses))
    }
    answer: dict[str, Any] = {"description": route.summary or HTTPStatus(route.status).phrase}
    answer["content"] = {route.media_type: {"schema": _with_references(route.answer, components)}}
    operation: dict[str, Any] = {
        "operationId": _name(route),
        "summary": route.summary,
        "responses": {str(route.status): answer, **refusals},
    }
    parameters = [*_of_path(route, components), *_of_query(route, components)]
    if route.is_open:
        operation["security"] = []
    if parameters:
        operation["parameters"] = parameters
    if _has_body(route) and route.body is not None:
        content = {JSON: {"schema": _with_references(route.body, components)}}
        operation["requestBody"] = {"content": content, "required": bool(_needs_body(route.body))}
    return operation


def _of_path(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _with_references(parameter_schema(name), components)}
        for name in route.parameters
    ]


def _of_query(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    required = route.query.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _with_references(schema, components)}
        for name, schema in route.query["properties"].items()
    ]


def _has_body(route: Route) -> bool:
    has_fields = route.body is None or route.body.get("properties") or route.body.get("additionalProperties")
    return route.method not in _WITHOUT_BODY and bool(has_fields)


def _needs_body(body: Schema) -> Any:
    return body.get("required") or body.get("minProperties")


def _name(route: Route) -> str:
    words = [word.lstrip(":").replace(".", "-") for word in route.path.split("/") if word]
    return "-".join([route.method.lower(), *words])


def _with_references(schema: Any, components: dict[str, Any]) -> Any:
    """Replace named schemas by references, and add them to the components."""
    if isinstance(schema, list):
        return [_with_references(item, components) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    name = schema.get(NAME)
    placed = {key: _with_references(value, components) for key, value in schema.items() if key != NAME}
    if not isinstance(name, str):
        return placed
    assert components.setdefault(name, placed) == placed, f"two schemas have the name {name}"
    return {"$ref": f"#/components/schemas/{name}"}


class UnknownPathError(HttpError):
    """No route matches a path."""


class Routes:
    """The routes of a server, and the dispatch of requests to them.

    Args:
        job_id: The only job; paths of other jobs are answered with 404. None if the handlers know the jobs.

    Attributes:
        linger: Waits until clients have fetched the results of operations, at most for the given seconds.
        not_ready_reason: Returns why the process is not ready, None if it is; for probes. Must not block.
    """

    def __init__(self, job_id: str | None, linger: Callable[[float], None]) -> None:
        self._job_id = job_id
        self.linger = linger
        self.not_ready_reason: Callable[[], str | None] = lambda: None
        self._routes: list[Route] = []
        self._absent: dict[str, str] = {}
        for name, route in declared_routes(Routes):
            self.serve(route.with_handler(getattr(self, name)))

    def serve(self, *routes: Route) -> None:
        self._routes = sorted([*self._routes, *routes], key=lambda route: route.order)

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Serve a path without schemas."""
        summary = (handler.__doc__ or "").strip().partition("\n")[0]
        self.serve(Route(method, path, handler=handler, summary=summary))

    def add_absent(self, absent: Mapping[str, str]) -> None:
        """Answer Flink's paths that are not served with 501 and a reason.

        Args:
            absent: The reason by method and path; `*` matches anything.
        """
        for target, reason in absent.items():
            method, _, path = target.partition(" ")
            text = f"{method} {path.rstrip('*')} is not served. {reason}"
            self.serve(Route(method, path, handler=_refusal(text), status=501, summary=text))
        self._absent |= absent

    @property
    def served(self) -> list[Route]:
        """The routes without those that only give a reason."""
        return [route for route in self._routes if not route.is_refusal]

    @serves("GET", "/openapi.json", mapping(ANY))
    def openapi(self, request: Request) -> Response:
        """This interface, as an OpenAPI document."""
        return Response(openapi_document(self.served, self._absent))

    @serves("GET", "/health/live", record({"status": STRING}), is_open=True)
    def live(self, request: Request) -> Response:
        """Liveness probe of the process."""
        return probe_response("/health/live", None)

    @serves("GET", "/health/ready", record({"status": STRING}), is_open=True)
    def ready(self, request: Request) -> Response:
        """Readiness probe of the process."""
        return probe_response("/health/ready", self.not_ready_reason())

    def answer(self, method: str, target: str, body: Mapping[str, Any]) -> Response:
        """Dispatch a request to its route.

        Raises:
            HttpError: No route matches, or the request is refused.
        """
        parts = split_target(target)
        shown = f"{parts.path!r:.200}"
        fitting = [(route, match) for route in self._routes if (match := route.pattern.fullmatch(parts.path))]
        allowed = ", ".join(sorted({route.method for route, _ in fitting if not route.is_refusal}))
        for route, match in fitting:
            if route.method != method:
                continue
            if route.is_refusal and allowed:
                raise HttpError(405, f"{route.summary} {allowed} is served at {shown}.", {"Allow": allowed})
            found = match.groupdict()
            if self._job_id is not None and found.get("jobid", self._job_id) != self._job_id:
                raise HttpError(404, f"Job {found['jobid']:.80} not found; this is the master of {self._job_id}.")
            return route.respond(found, dict(parse_qsl(parts.query, keep_blank_values=True)), body)
        if allowed:
            raise HttpError(405, f"{method:.80} is not served at {shown}; {allowed} is.", {"Allow": allowed})
        raise UnknownPathError(404, f"Nothing is served at {shown}.")


def _refusal(text: str) -> Handler:
    def refuse(request: Request) -> Response:
        raise HttpError(501, text)

    return refuse
