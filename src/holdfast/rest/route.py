"""What is served at which path, what it takes and what it answers: one declaration, which acts and which is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

from holdfast import __version__
from holdfast.rest.http import Answer, RefusedError, Request, parts_of, probed

# The words in which bodies, queries and answers are declared: JSON Schema, of which what is used here is checked here.
#
# What a request brings is checked against its declaration before anybody acts on it, so the declaration cannot say
# anything else than what is taken. Answers are judged by tests.

Schema = Mapping[str, Any]

NAME: Final = "x-name"
"""Under which name a schema stands in the document once, instead of wherever it is used."""
REFUSED: Final = "x-refused"
"""Values that have a status and a reason of their own."""
FORM: Final = "x-form"
"""What a pattern means, in words."""

ANY: Final[Schema] = {}
FLAG: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
STRING: Final[Schema] = {"type": "string"}
TEXT: Final[Schema] = {"type": "string", "pattern": r"\S"}
"""Text that says something."""
_SHOWN: Final = 80


def integer(least: int | None = None, most: int | None = None) -> Schema:
    """A whole number."""
    bounds = {"minimum": least, "maximum": most}
    return {**INTEGER, **{name: bound for name, bound in bounds.items() if bound is not None}}


def matching(pattern: str, what: str | None = None) -> Schema:
    """Text of a form.

    Args:
        pattern: From its first character on; to its last if it ends with `$`.
        what: The form in words.
    """
    return {"type": "string", "pattern": f"^{pattern}", **({FORM: what} if what else {})}


def choice(*values: str, refused: Mapping[str, tuple[int, str]] | None = None) -> Schema:
    """One of several texts.

    Args:
        values: What is taken.
        refused: Values that people may try, each with the status and the reason of the refusal.
    """
    others = {REFUSED: {value: list(why) for value, why in refused.items()}} if refused else {}
    return {"type": "string", "enum": list(values), **others}


def array(of: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": of}


def mapping(of: Schema, least: int = 0) -> Schema:
    """An object whose fields have any names."""
    return {"type": "object", "additionalProperties": of, **({"minProperties": least} if least else {})}


def record(fields: Mapping[str, Schema] | None = None, optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with fields that are there, others that may be, and no further ones."""
    needed, others = fields or {}, optional or {}
    return {
        "type": "object",
        "properties": {**needed, **others},
        "additionalProperties": False,
        **({"required": list(needed)} if needed else {}),
    }


def or_none(of: Schema) -> Schema:
    """A value that may be missing."""
    return {"anyOf": [of, {"type": "null"}]}


def either(*kinds: Schema) -> Schema:
    """A value of one of several forms."""
    return {"anyOf": list(kinds)}


def named(name: str, schema: Schema) -> Schema:
    """A schema with a name of its own."""
    return {**schema, NAME: name}


def told(what: str, schema: Schema) -> Schema:
    """A schema with a sentence about it."""
    return {**schema, "description": what}


def check(value: Any, schema: Schema, name: str = "The body") -> None:
    """Check what a request brings.

    Args:
        value: It.
        schema: What it must be.
        name: What it is called in messages.

    Raises:
        RefusedError: It is something else.
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
            raise _wrong(name, f"a whole number{_between(least, most)}", value)
    else:
        assert not schema, f"nothing checks {schema!r}"


def query_of(texts: Mapping[str, str], schema: Schema) -> dict[str, Any]:
    """Return the query of a request, of which each value arrives as text.

    Raises:
        RefusedError: It is not what the schema says.
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
            raise RefusedError(400, f"The field {key!r:.{_SHOWN}} is not known; there are {sorted(known)!r}.")
        else:
            check(entry, others, f"{key!r:.{_SHOWN}}")
    for key in schema.get("required", ()):
        if key not in value:
            raise RefusedError(400, f"{name} has no field {key!r}.")
    if len(value) < schema.get("minProperties", 0):
        raise RefusedError(400, f"{name} is empty.")


def _check_text(value: Any, schema: Schema, name: str) -> None:
    if isinstance(value, str) and value in schema.get(REFUSED, ()):
        status, reason = schema[REFUSED][value]
        raise RefusedError(status, reason)
    if "enum" in schema:
        if value not in schema["enum"]:
            raise _wrong(name, f"one of {', '.join(schema['enum'])}", value)
    elif not isinstance(value, str) or not _matches(schema.get("pattern"), value):
        form = schema.get("pattern", r"\S")
        raise _wrong(name, schema.get(FORM) or ("text" if form == r"\S" else f"text of the form {form}"), value)


def _matches(pattern: str | None, text: str) -> bool:
    if pattern is None:
        return True
    is_whole = pattern.startswith("^") and pattern.endswith("$")
    return (re.fullmatch(pattern[1:-1], text) if is_whole else re.search(pattern, text)) is not None


def _between(least: int | None, most: int | None) -> str:
    bounds = [f"at least {least}"] if least is not None else []
    bounds += [f"at most {most}"] if most is not None else []
    return f" of {' and '.join(bounds)}" if bounds else ""


def _wrong(name: str, what: str, value: Any) -> RefusedError:
    return RefusedError(400, f"{name} is {what}, not {value!r:.{_SHOWN}}.")


# One path with its method: what it takes, what it answers, and who does.

Handler = Callable[[Request], Answer]
_Method = TypeVar("_Method", bound=Callable[..., Answer])
_SERVES: Final = "_holdfast_serves"
_PARAMETER: Final = re.compile(r":([a-z]+)")
JSON: Final = "application/json"
_NOTHING: Final[Schema] = record()
_ID: Final = matching("[0-9A-Za-z-]{1,64}$", "1 to 64 letters, digits and '-'")
PARAMETERS: Final[dict[str, Schema]] = {
    "jobid": matching("[0-9a-f]{32}$"),
    "checkpointid": matching("[0-9]{1,19}$"),
    "triggerid": _ID,
    "snapshotid": matching("(?:latest|[0-9]{1,19})$", "the id of a checkpoint, or 'latest'"),
    "otherid": matching("(?:latest|[0-9]{1,19})$", "the id of a checkpoint, or 'latest'"),
}
"""The parts of paths that have a form; others are text."""
TRIGGER_ID: Final = _ID


@dataclass(frozen=True)
class Route:
    """What is served at a path.

    Attributes:
        method: GET, POST, PUT, PATCH or DELETE.
        path: Such as ``/jobs/:jobid``; `*` stands for anything.
        answer: The form of what is answered if all goes well.
        handler: Who answers; None in a declaration that is not bound yet.
        status: With which status.
        query: An object with what may stand behind the question mark; None: anything, and nobody looks.
        body: The form of the body; None: anything, and whoever answers checks it.
        media_type: Of the answer.
        refusals: Statuses of refusals besides those that every path may have.
        what: What it is, in a sentence.
        is_open: Whether it is answered without the token.
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
    what: str = ""
    is_open: bool = False

    @property
    def parameters(self) -> list[str]:
        """The parts of the path that vary."""
        return _PARAMETER.findall(self.path)

    @property
    def is_refusal(self) -> bool:
        """Whether all that is ever answered is why not."""
        return self.status >= 500

    @property
    def order(self) -> tuple[Any, ...]:
        """Paths that say more come before those that fit them, too."""
        return "*" in self.path, [(part.startswith(":"), part) for part in self.path.split("/")]

    @property
    def pattern(self) -> re.Pattern[str]:
        """What fits."""
        path = _PARAMETER.sub(lambda found: _part(found[1]), self.path.replace("*", ".*"))
        return re.compile(f"(?:/v1)?{path}/?")

    def bound(self, handler: Handler) -> Route:
        """The same with somebody who answers."""
        return replace(self, handler=handler)

    def respond(self, path: Mapping[str, str], query: Mapping[str, str], body: Mapping[str, Any]) -> Answer:
        """Answer a request.

        Args:
            path: The parts of its path that vary, as they stand in it.
            query: Its query.
            body: Its body.

        Raises:
            RefusedError: It is not as declared, or cannot be answered.
        """
        assert self.handler is not None
        parts = {name: unquote(text) for name, text in path.items()}
        numbers = dict(query) if self.query is None else query_of(query, self.query)
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
    """Declare what a method of an API serves; the first line of its docstring says what that is.

    Args:
        method: GET, POST, PUT, PATCH or DELETE.
        path: Such as ``/jobs/:jobid``.
        answer: The form of the answer.
        status: The status of the answer.
        query: What may stand behind the question mark.
        body: The form of the body; None for none.
        media_type: Of the answer.
        refusals: Statuses of refusals besides those that every path may have.
        is_open: Whether it is answered without the token.
    """

    def declare(handler: _Method) -> _Method:
        what = (handler.__doc__ or "").strip().partition("\n")[0]
        taken = _NOTHING if body is None else body
        route = Route(method, path, answer, None, status, query, taken, media_type, refusals, what, is_open)
        setattr(handler, _SERVES, route)
        return handler

    return declare


def declared(kind: type) -> Iterator[tuple[str, Route]]:
    """What the methods of an API serve, by their names."""
    for name, member in vars(kind).items():
        route = getattr(member, _SERVES, None)
        if route is not None:
            yield name, route


def bound(api: object) -> Iterator[Route]:
    """What an API serves."""
    for name, route in declared(type(api)):
        yield route.bound(getattr(api, name))


def _part(parameter: str) -> str:
    form = PARAMETERS.get(parameter)
    return f"(?P<{parameter}>{'[^/]+' if form is None else form['pattern'].strip('^$')})"


def form_of(parameter: str) -> Schema:
    """The form of a part of a path."""
    return PARAMETERS.get(parameter, TEXT)


# The OpenAPI document of what is served: made of the routes, and of nothing else.

_VERSION: Final = "3.1.0"
_ERRORS: Final = named("Errors", record({"errors": array(STRING)}))
_WITHOUT_BODY: Final = frozenset({"GET", "DELETE"})
_ALWAYS: Final = (401, 500, 503)
_TOKEN: Final = "token"


def document_of(routes: Iterable[Route], absent: Mapping[str, str]) -> dict[str, Any]:
    """Return the document.

    Args:
        routes: What is served.
        absent: Paths of Flink's that have no meaning here, and why.
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
            "content": {JSON: {"schema": _placed(_ERRORS, components)}},
        }
        for status in sorted(set(statuses))
    }
    answer: dict[str, Any] = {"description": route.what or HTTPStatus(route.status).phrase}
    answer["content"] = {route.media_type: {"schema": _placed(route.answer, components)}}
    operation: dict[str, Any] = {
        "operationId": _name(route),
        "summary": route.what,
        "responses": {str(route.status): answer, **refusals},
    }
    parameters = [*_of_path(route, components), *_of_query(route, components)]
    if route.is_open:
        operation["security"] = []
    if parameters:
        operation["parameters"] = parameters
    if _has_body(route) and route.body is not None:
        content = {JSON: {"schema": _placed(route.body, components)}}
        operation["requestBody"] = {"content": content, "required": bool(_needs_body(route.body))}
    return operation


def _of_path(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _placed(form_of(name), components)}
        for name in route.parameters
    ]


def _of_query(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    required = route.query.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _placed(schema, components)}
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


def _placed(schema: Any, components: dict[str, Any]) -> Any:
    """The schema with those that have names moved to where they stand once."""
    if isinstance(schema, list):
        return [_placed(item, components) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    name = schema.get(NAME)
    placed = {key: _placed(value, components) for key, value in schema.items() if key != NAME}
    if not isinstance(name, str):
        return placed
    assert components.setdefault(name, placed) == placed, f"two schemas are called {name}"
    return {"$ref": f"#/components/schemas/{name}"}


# All that is served, and who answers a request.


class UnknownPathError(RefusedError):
    """Nothing is served at a path."""


class Routes:
    """What is served: method and path, such as ``GET /jobs/:jobid``, and who answers.

    Args:
        job_id: The job; paths of other jobs are answered with 404. None: whoever answers knows which jobs there are.

    Attributes:
        linger: Waits until the outcomes of operations have been fetched, at most for the given seconds.
        not_ready: Says why the process is not ready, None if it is; for probes. Must not block.
    """

    def __init__(self, job_id: str | None, linger: Callable[[float], None]) -> None:
        self._job_id = job_id
        self.linger = linger
        self.not_ready: Callable[[], str | None] = lambda: None
        self._routes: list[Route] = []
        self._absent: dict[str, str] = {}
        for name, route in declared(Routes):
            self.serve(route.bound(getattr(self, name)))

    def serve(self, *routes: Route) -> None:
        """Serve what is declared."""
        self._routes = sorted([*self._routes, *routes], key=lambda route: route.order)

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Serve a path that nothing is declared of: any query and any answer."""
        what = (handler.__doc__ or "").strip().partition("\n")[0]
        self.serve(Route(method, path, handler=handler, what=what))

    def add_absent(self, absent: Mapping[str, str]) -> None:
        """Say why paths of Flink's are not served; `*` stands for anything.

        Args:
            absent: The reason by method and path.
        """
        for target, reason in absent.items():
            method, _, path = target.partition(" ")
            what = f"{method} {path.rstrip('*')} has no meaning here. {reason}"
            self.serve(Route(method, path, handler=_refusal(what), status=501, what=what))
        self._absent |= absent

    @property
    def served(self) -> list[Route]:
        """What is answered with more than a reason."""
        return [route for route in self._routes if not route.is_refusal]

    @serves("GET", "/openapi.json", mapping(ANY))
    def openapi(self, request: Request) -> Answer:
        """This interface, as an OpenAPI document."""
        return Answer(document_of(self.served, self._absent))

    @serves("GET", "/health/live", record({"status": STRING}), is_open=True)
    def live(self, request: Request) -> Answer:
        """Whether the process is alive, for probes."""
        return probed("/health/live", None)

    @serves("GET", "/health/ready", record({"status": STRING}), is_open=True)
    def ready(self, request: Request) -> Answer:
        """Whether the process is ready, for probes."""
        return probed("/health/ready", self.not_ready())

    def answer(self, method: str, target: str, body: Mapping[str, Any]) -> Answer:
        """Answer a request.

        Raises:
            RefusedError: It cannot be answered.
        """
        parts = parts_of(target)
        shown = f"{parts.path!r:.200}"
        fitting = [(route, match) for route in self._routes if (match := route.pattern.fullmatch(parts.path))]
        allowed = ", ".join(sorted({route.method for route, _ in fitting if not route.is_refusal}))
        for route, match in fitting:
            if route.method != method:
                continue
            if route.is_refusal and allowed:
                raise RefusedError(405, f"{route.what} {allowed} is served at {shown}.", {"Allow": allowed})
            found = match.groupdict()
            if self._job_id is not None and found.get("jobid", self._job_id) != self._job_id:
                raise RefusedError(404, f"Job {found['jobid']:.80} not found; this is the master of {self._job_id}.")
            return route.respond(found, dict(parse_qsl(parts.query, keep_blank_values=True)), body)
        if allowed:
            raise RefusedError(405, f"{method:.80} is not served at {shown}; {allowed} is.", {"Allow": allowed})
        raise UnknownPathError(404, f"Nothing is served at {shown}.")


def _refusal(what: str) -> Handler:
    def refuse(request: Request) -> Answer:
        raise RefusedError(501, what)

    return refuse
