"""The HTTP side of the API server double: paths, media types, tokens, faults, answers."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any

import yaml
from aiohttp import web

from holdfast.testing.kubernetes import status
from holdfast.testing.kubernetes.access import Access, Attributes, User, service_account
from holdfast.testing.kubernetes.fault import Fault, FaultKind, Faults
from holdfast.testing.kubernetes.object import TYPES
from holdfast.testing.kubernetes.patch import PATCH_TYPES
from holdfast.testing.kubernetes.store import VersionedStore
from holdfast.testing.kubernetes.verb import Target, Verbs
from holdfast.testing.kubernetes.watch import Watch, WatchControl

Json = dict[str, Any]

MAX_BODY = 3 * 1024 * 1024
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_JSON, _YAML = "application/json", "application/yaml"
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)
_BEFORE = (FaultKind.DROP_BEFORE, FaultKind.HANG_BEFORE, FaultKind.LATE, FaultKind.DELAY, FaultKind.ERROR_BEFORE)


@dataclass(frozen=True)
class Served:
    """One line of the request log."""

    verb: str
    resource: str
    name: str
    user: str
    code: int


class DroppedConnection(Exception):
    """The connection is to be broken without an answer."""


class Api:
    """Answers requests. It belongs to one event loop."""

    def __init__(self, store: VersionedStore, access: Access) -> None:
        self._store = store
        self._access = access
        self._verbs = Verbs(store)
        self.faults = Faults()
        self.watches = WatchControl()
        self.log: list[Served] = []
        self.open = asyncio.Event()
        self.open.set()
        self.stopping = False
        self._background: set[asyncio.Task[None]] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        await self.open.wait()
        try:
            return await self._serve(request)
        except status.StatusError as error:
            return _answer(error.code, error.status())
        except (DroppedConnection, ConnectionResetError):
            if request.transport is not None:
                request.transport.abort()
            return web.Response()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        user = self._access.authenticate(request.headers.get("Authorization"))
        path = request.path.rstrip("/") or "/"
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        if path == "/version":
            return _answer(200, {"major": "1", "minor": "37", "gitVersion": "v1.37.0-holdfast"})
        self._check_accept(request)
        if path == REVIEWS and request.method == "POST":
            self._access.authorize(user, Attributes("create", "authorization.k8s.io", "selfsubjectaccessreviews", ""))
            return self._logged(
                "create", "selfsubjectaccessreviews", "", user, 201, self._review(user, await _body(request))
            )
        discovered = _discovery(path)
        if discovered is not None and request.method == "GET":
            return _answer(200, discovered)
        target, subresource = self._target(request, path)
        verb = self._verb(request, target)
        name = target.name or (target.selector().name if verb in ("list", "watch", "deletecollection") else "")
        wanted = Attributes(
            verb, target.type.group, target.type.plural, target.namespace or _own_namespace(target), name, subresource
        )
        self._access.authorize(user, wanted)
        return await self._guarded(request, target, subresource, verb, name, user)

    def _logged(self, verb: str, resource: str, name: str, user: User, code: int, answer: Json) -> web.Response:
        self.log.append(Served(verb, resource, name, user.name, code))
        return _answer(code, answer)

    async def _guarded(
        self, request: web.Request, target: Target, subresource: str, verb: str, name: str, user: User
    ) -> web.StreamResponse:
        fault = self.faults.take(verb, target.type.plural, name)
        if fault is not None and fault.kind in _BEFORE:
            await self._strike_before(fault, request, target, subresource, verb)
        if verb == "watch":
            self.log.append(Served(verb, target.type.plural, name, user.name, 200))
            return await self._watch(request, target)
        try:
            code, answer = await self._execute(request, target, subresource, verb)
        except status.StatusError as error:
            self.log.append(Served(verb, target.type.plural, name, user.name, error.code))
            raise
        response = self._logged(verb, target.type.plural, name, user, code, answer)
        if fault is not None and fault.kind not in _BEFORE:
            await self._strike_after(fault)
        return response

    async def _strike_before(
        self, fault: Fault, request: web.Request, target: Target, subresource: str, verb: str
    ) -> None:
        if fault.kind is FaultKind.DROP_BEFORE:
            raise DroppedConnection
        if fault.kind is FaultKind.HANG_BEFORE:
            await self._hang()
        if fault.kind is FaultKind.ERROR_BEFORE:
            raise _injected(fault)
        if fault.kind is FaultKind.DELAY:
            await asyncio.sleep(fault.seconds)
        if fault.kind is FaultKind.LATE:
            body, kind = await _body(request), request.content_type
            task = asyncio.create_task(self._later(fault.seconds, kind, body, target, subresource, verb))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            raise DroppedConnection

    async def _later(
        self, seconds: float, content_type: str, body: object, target: Target, subresource: str, verb: str
    ) -> None:
        await asyncio.sleep(seconds)
        try:
            self._apply(content_type, body, target, subresource, verb)
        except status.StatusError as error:
            self.log.append(Served(f"late-{verb}", target.type.plural, target.name, "", error.code))
        else:
            self.log.append(Served(f"late-{verb}", target.type.plural, target.name, "", 200))

    def forget_late(self) -> None:
        """Give up the requests that were to be carried out late."""
        for task in self._background:
            task.cancel()

    async def _strike_after(self, fault: Fault) -> None:
        if fault.kind is FaultKind.DROP_AFTER:
            raise DroppedConnection
        if fault.kind is FaultKind.ERROR_AFTER:
            raise _injected(fault)
        await self._hang()

    async def _hang(self) -> None:
        while not self.stopping:
            await asyncio.sleep(0.1)
        raise DroppedConnection

    async def _execute(self, request: web.Request, target: Target, subresource: str, verb: str) -> tuple[int, Json]:
        body: object = None
        if verb in ("create", "update", "patch"):
            accepted = PATCH_TYPES if verb == "patch" else [_JSON, _YAML]
            if request.content_type not in accepted:
                raise status.unsupported_media_type(accepted)
        if request.can_read_body:
            body = await _body(request)
        return self._apply(request.content_type, body, target, subresource, verb)

    def _apply(self, content_type: str, body: object, target: Target, subresource: str, verb: str) -> tuple[int, Json]:
        if subresource:
            return 201, self._token(target, body)
        if verb == "get":
            return 200, self._verbs.get(target)
        if verb == "list":
            return 200, self._verbs.collection(target)
        if verb == "create":
            return 201, self._verbs.create(target, body)
        if verb == "update":
            created, value = self._verbs.update(target, body)
            return (201 if created else 200), value
        if verb == "patch":
            return 200, self._verbs.patch(target, content_type, body)
        options = body if isinstance(body, dict) else {}
        if verb == "deletecollection":
            return 200, self._verbs.delete_collection(target, options)
        return 200, self._verbs.delete(target, options)

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        if target.name:
            target = Target(
                target.type, target.namespace, "", {**target.query, "fieldSelector": f"metadata.name={target.name}"}
            )
        watch = Watch(self._store, target, self.watches)
        watch.check()
        response = web.StreamResponse(headers={"Content-Type": _JSON})
        response.enable_chunked_encoding()
        await response.prepare(request)
        ended = await watch.run(response, lambda: self.stopping or request.transport is None)
        if not ended:
            raise DroppedConnection
        await response.write_eof()
        return response

    def _token(self, target: Target, body: object) -> Json:
        self._verbs.get(target)
        answer: Json = dict(body) if isinstance(body, dict) else {}
        token = self._access.issue(service_account(target.namespace or "", target.name))
        answer["status"] = {"token": token, "expirationTimestamp": "2100-01-01T00:00:00Z"}
        return answer

    def _review(self, user: User, body: object) -> Json:
        if not isinstance(body, dict) or not isinstance(body.get("spec"), dict):
            raise status.bad_request("SelfSubjectAccessReview needs a spec")
        asked = body["spec"].get("resourceAttributes") or {}
        resource, _, subresource = asked.get("resource", "").partition("/")
        wanted = Attributes(
            asked.get("verb", ""), asked.get("group", ""), resource, asked.get("namespace", ""),
            asked.get("name", ""), asked.get("subresource", subresource),
        )  # fmt: skip
        allowed = self._access.allows(user, wanted)
        return {
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "metadata": {}, "spec": body["spec"], "status": {"allowed": allowed},
        }  # fmt: skip

    @staticmethod
    def _target(request: web.Request, path: str) -> tuple[Target, str]:
        found = _PATH.fullmatch(path)
        if found is None:
            raise status.unknown_path()
        group = found["group"] or ""
        for kind in TYPES:
            if (kind.group, kind.version, kind.plural) == (group, found["version"], found["plural"]):
                break
        else:
            raise status.unknown_path()
        subresource = found["sub"] or ""
        if subresource and (kind.plural, subresource) != ("serviceaccounts", "token"):
            raise status.unknown_path()
        namespace = found["namespace"]
        if kind.namespaced and namespace is None and found["name"]:
            raise status.unknown_path()
        return Target(kind, namespace, found["name"] or "", dict(request.query)), subresource

    @staticmethod
    def _verb(request: web.Request, target: Target) -> str:
        watching = request.query.get("watch") in ("true", "1")
        one = bool(target.name)
        if target.type.namespaced and target.namespace is None and request.method != "GET":
            raise status.method_not_allowed()
        verbs = {
            ("GET", True): "watch" if watching else "get",
            ("GET", False): "watch" if watching else "list",
            ("POST", False): "create",
            ("PUT", True): "update",
            ("PATCH", True): "patch",
            ("DELETE", True): "delete",
            ("DELETE", False): "deletecollection",
        }
        if request.path.endswith("/token") and request.method == "POST":
            return "create"
        verb = verbs.get((request.method, one))
        if verb is None:
            raise status.method_not_allowed()
        return verb

    @staticmethod
    def _check_accept(request: web.Request) -> None:
        accepted = [part.split(";")[0].strip() for part in request.headers.get("Accept", "*/*").split(",")]
        if not {"*/*", "application/*", _JSON} & set(accepted):
            raise status.not_acceptable([_JSON])


def _own_namespace(target: Target) -> str:
    """A namespace object is authorized within itself, as by a real server."""
    return target.name if target.type.plural == "namespaces" else ""


def _injected(fault: Fault) -> status.StatusError:
    reasons = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
    return status.StatusError(fault.code, reasons.get(fault.code, ""), f"injected status {fault.code}")


def _answer(code: int, body: Json) -> web.Response:
    headers = {"Retry-After": "1"} if code in (429, 504) else None
    return web.Response(status=code, body=json.dumps(body).encode() + b"\n", content_type=_JSON, headers=headers)


async def _body(request: web.Request) -> object:
    try:
        data = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise status.too_large(f"Request entity too large: limit is {MAX_BODY}") from error
    try:
        return yaml.safe_load(data) if request.content_type == _YAML else json.loads(data or b"null")
    except (ValueError, yaml.YAMLError) as error:
        raise status.bad_request(f"couldn't get version/kind; json parse error: {error}") from error


def _discovery(path: str) -> Json | None:
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = sorted({(kind.group, kind.api_version, kind.version) for kind in TYPES if kind.group})
        return {
            "kind": "APIGroupList", "apiVersion": "v1",
            "groups": [
                {"name": group, "versions": [{"groupVersion": full, "version": version}]}
                for group, full, version in groups
            ],
        }  # fmt: skip
    for kind in TYPES:
        if path == (f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"):
            return {
                "kind": "APIResourceList", "groupVersion": kind.api_version,
                "resources": [
                    {"name": other.plural, "namespaced": other.namespaced, "kind": other.kind}
                    for other in TYPES if other.api_version == kind.api_version
                ],
            }  # fmt: skip
    return None
