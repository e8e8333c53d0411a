"""The OpenAPI document of what is served: made of the routes, and of nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from holdfast import __version__
from holdfast.rest.route.route import JSON, Route, form_of
from holdfast.rest.route.schema import NAME, STRING, Schema, array, named, record

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
