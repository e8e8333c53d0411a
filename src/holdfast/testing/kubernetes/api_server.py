"""A strict Kubernetes API server for tests: real HTTP, documented behaviour, and injected faults.

It serves what a client of ConfigMaps and Leases can meet: optimistic locking by resource versions, watches with
bookmarks and expired history, label and field selectors, chunked lists, patches, preconditions, validation, tokens,
Roles and RoleBindings, access reviews. It is no cluster: nothing runs on it, and no controller changes objects.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import json
import re
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import trustme
import yaml
from aiohttp import web

from holdfast.testing.kubernetes import objects
from holdfast.testing.kubernetes.objects import RBAC, TYPES
from holdfast.testing.kubernetes.store import (
    ADMINISTRATOR,
    PATCH_TYPES,
    Access,
    Attributes,
    User,
    VersionedStore,
    service_account,
)
from holdfast.testing.kubernetes.verbs import Target, Verbs, Watch, WatchControl

# Injected faults. Each hits the next `times` requests that match it, and looks to the client as on a real cluster: a
# broken connection, no answer, or a 5xx of a proxy.


class FaultKind(enum.Enum):
    """The moment of a fault, and what the client sees."""

    DROP_BEFORE = "drop-before"
    """The connection breaks and nothing has happened."""
    DROP_AFTER = "drop-after"
    """The connection breaks after the write was applied."""
    HANG_BEFORE = "hang-before"
    """No answer ever comes and nothing has happened."""
    HANG_AFTER = "hang-after"
    """No answer ever comes although the write was applied."""
    LATE = "late"
    """The connection breaks at once, and the request is carried out `seconds` later."""
    DELAY = "delay"
    """Everything works, `seconds` late."""
    ERROR_BEFORE = "error-before"
    """The status `code` is answered and nothing has happened."""
    ERROR_AFTER = "error-after"
    """The status `code` is answered although the write was applied."""


@dataclass
class Fault:
    """A fault that is injected into requests.

    Attributes:
        kind: The kind of fault.
        verb: get, list, watch, create, update, patch, delete, deletecollection; any if empty.
        resource: The plural of a type; any if empty.
        name: The name of an object; any if empty.
        times: Number of requests that are hit.
        skip: Number of matching requests that pass before.
        seconds: The length of a delay.
        code: The status code of an error.
    """

    kind: FaultKind
    verb: str = ""
    resource: str = ""
    name: str = ""
    times: int = 1
    skip: int = 0
    seconds: float = 0.0
    code: int = 503

    def wants(self, verb: str, resource: str, name: str) -> bool:
        return self.verb in ("", verb) and self.resource in ("", resource) and self.name in ("", name)


class Faults:
    """The faults that have not been used up. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: list[Fault] = []

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._orders.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._orders.clear()

    @property
    def pending(self) -> int:
        with self._lock:
            return len(self._orders)

    def take(self, verb: str, resource: str, name: str) -> Fault | None:
        """Return the fault that hits a request; None if none does."""
        with self._lock:
            for fault in self._orders:
                if fault.wants(verb, resource, name):
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    if fault.times <= 0:
                        self._orders.remove(fault)
                    return fault
        return None


# HTTP: paths, media types, tokens, faults, answers.

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
    """Raised to break the connection without an answer."""


class Api:
    """Answers requests. Belongs to one event loop."""

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
        await self.open.wait()
        try:
            return await self._serve(request)
        except objects.StatusError as error:
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
        except objects.StatusError as error:
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
        except objects.StatusError as error:
            self.log.append(Served(f"late-{verb}", target.type.plural, target.name, "", error.code))
        else:
            self.log.append(Served(f"late-{verb}", target.type.plural, target.name, "", 200))

    def forget_late(self) -> None:
        """Cancel the requests that were delayed by `LATE`."""
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
                raise objects.unsupported_media_type(accepted)
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
            raise objects.bad_request("SelfSubjectAccessReview needs a spec")
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
            raise objects.unknown_path()
        group = found["group"] or ""
        for kind in TYPES:
            if (kind.group, kind.version, kind.plural) == (group, found["version"], found["plural"]):
                break
        else:
            raise objects.unknown_path()
        subresource = found["sub"] or ""
        if subresource and (kind.plural, subresource) != ("serviceaccounts", "token"):
            raise objects.unknown_path()
        namespace = found["namespace"]
        if kind.namespaced and namespace is None and found["name"]:
            raise objects.unknown_path()
        return Target(kind, namespace, found["name"] or "", dict(request.query)), subresource

    @staticmethod
    def _verb(request: web.Request, target: Target) -> str:
        watching = request.query.get("watch") in ("true", "1")
        one = bool(target.name)
        if target.type.namespaced and target.namespace is None and request.method != "GET":
            raise objects.method_not_allowed()
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
            raise objects.method_not_allowed()
        return verb

    @staticmethod
    def _check_accept(request: web.Request) -> None:
        accepted = [part.split(";")[0].strip() for part in request.headers.get("Accept", "*/*").split(",")]
        if not {"*/*", "application/*", _JSON} & set(accepted):
            raise objects.not_acceptable([_JSON])


def _own_namespace(target: Target) -> str:
    """Return the namespace in which a namespace object itself is authorized, as a real server does."""
    return target.name if target.type.plural == "namespaces" else ""


def _injected(fault: Fault) -> objects.StatusError:
    reasons = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
    return objects.StatusError(fault.code, reasons.get(fault.code, ""), f"injected status {fault.code}")


def _answer(code: int, body: Json) -> web.Response:
    headers = {"Retry-After": "1"} if code in (429, 504) else None
    return web.Response(status=code, body=json.dumps(body).encode() + b"\n", content_type=_JSON, headers=headers)


async def _body(request: web.Request) -> object:
    try:
        data = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise objects.too_large(f"Request entity too large: limit is {MAX_BODY}") from error
    try:
        return yaml.safe_load(data) if request.content_type == _YAML else json.loads(data or b"null")
    except (ValueError, yaml.YAMLError) as error:
        raise objects.bad_request(f"couldn't get version/kind; json parse error: {error}") from error


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


__all__ = ["Fault", "FaultKind", "KubernetesApiServer", "Served"]


_T = TypeVar("_T")

_WAIT_SECONDS = 30.0


class KubernetesApiServer:
    """A Kubernetes API server in a thread of its own. Usable as a context manager; `start` blocks until it listens.

    Tests that use only `kubeconfig` run unchanged against a real cluster; the other methods inject faults.

    >>> from pathlib import Path
    >>> import tempfile
    >>> with KubernetesApiServer() as server:
    ...     path = server.write_kubeconfig(Path(tempfile.mkdtemp()) / "kubeconfig")
    ...     path.name
    'kubeconfig'
    """

    def __init__(self, *, tls: bool = False, namespaces: Iterable[str] = (), seed: int = 0) -> None:
        self._namespaces = ["default", *namespaces]
        self._seed = seed
        self._authority = trustme.CA() if tls else None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes-api-server", daemon=True)
        self._runner: web.AppRunner | None = None
        self._port = 0

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> KubernetesApiServer:
        """Listen on a free port of the loopback address. Blocks until it does."""
        self._thread.start()

        async def begin() -> None:
            self._store = VersionedStore(self._seed)
            self._access = Access(self._store)
            self._api = Api(self._store, self._access)
            for name in self._namespaces:
                self._create_namespace(name)
            await self._listen()

        self._run(begin())
        self._administrator = self._access.issue(ADMINISTRATOR)
        return self

    def close(self) -> None:
        """Stop for good."""
        if not self._thread.is_alive():
            return
        self._run(self._stop_listening())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_SECONDS)
        self._loop.close()

    def __enter__(self) -> KubernetesApiServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_SECONDS)

    def _call(self, function: Callable[[], _T]) -> _T:
        async def work() -> _T:
            return function()

        return self._run(work())

    async def _listen(self) -> None:
        application = web.Application(client_max_size=MAX_BODY)
        application.router.add_route("*", "/{path:.*}", self._api.handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls_context(), reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _stop_listening(self) -> None:
        self._api.stopping = True
        self._api.open.set()
        self._api.forget_late()
        self._store.wake()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._api.stopping = False

    def _tls_context(self) -> ssl.SSLContext | None:
        if self._authority is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
        return context

    # -- access -------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"{'https' if self._authority else 'http'}://127.0.0.1:{self._port}"

    @property
    def administrator_token(self) -> str:
        """The token of a user with all rights."""
        return self._administrator

    def add_user(self, name: str, rules: list[Json] | None = None, namespace: str = "default") -> str:
        """Add a user and return its token.

        Args:
            name: Name of the user.
            namespace: The namespace in which it has rights.
            rules: Its rights there, as the rules of a Role.
        """

        def add() -> str:
            if rules is not None:
                role = {"rules": rules}
                reference = {"apiGroup": RBAC, "kind": "Role", "name": name}
                subject = {"kind": "User", "name": name, "apiGroup": RBAC}
                self._put("roles", namespace, name, "Role", role)
                self._put("rolebindings", namespace, name, "RoleBinding", {"roleRef": reference, "subjects": [subject]})
            return self._access.issue(User(name, ("system:authenticated",)))

        return self._call(add)

    def _put(self, plural: str, namespace: str, name: str, kind: str, fields: Json) -> None:
        metadata = {"name": name, "namespace": namespace, "uid": f"{plural}-{name}"}
        value = {"kind": kind, "apiVersion": f"{RBAC}/v1", "metadata": metadata, **fields}
        self._store.put((RBAC, plural, namespace, name), value)

    def revoke(self, token: str) -> None:
        """Reject a token with 401 from now on."""
        self._call(lambda: self._access.revoke(token))

    def kubeconfig(self, token: str | None = None, namespace: str = "default") -> Json:
        """Return a kubeconfig for a token; default: the administrator's."""
        cluster: Json = {"server": self.url}
        if self._authority is not None:
            certificate = self._authority.cert_pem.bytes()
            cluster["certificate-authority-data"] = base64.b64encode(certificate).decode()
        user = {"token": self.administrator_token if token is None else token}
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
        }  # fmt: skip

    def write_kubeconfig(self, path: Path, token: str | None = None, namespace: str = "default") -> Path:
        """Write a kubeconfig to a file, and return its path."""
        path.write_text(yaml.safe_dump(self.kubeconfig(token, namespace)))
        return path

    # -- what is inside -----------------------------------------------------------------------------------------

    def create_namespace(self, name: str) -> None:
        self._call(lambda: self._create_namespace(name))

    def _create_namespace(self, name: str) -> None:
        value = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name, "uid": f"namespace-{name}"}}
        self._store.put(("", "namespaces", "", name), value)

    def peek(self, plural: str, name: str, namespace: str = "default", group: str = "") -> Json | None:
        """Return an object from the store, bypassing all faults."""
        return self._call(lambda: self._store.get((group, plural, namespace, name)))

    @property
    def requests(self) -> list[Served]:
        """Return the requests that were served, in order."""
        return self._call(lambda: list(self._api.log))

    # -- faults -------------------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        self._api.faults.add(fault)

    def clear_faults(self) -> None:
        """Cancel the faults that have not happened."""
        self._api.faults.clear()

    @property
    def pending_faults(self) -> int:
        """The number of faults that have not been used up."""
        return self._api.faults.pending

    def compact(self) -> None:
        """Discard the history: watches and lists from an older version get 410."""
        self._call(self._store.compact)

    def answer_gone_by_status(self, on: bool = True) -> None:
        """Answer expired watches by the HTTP status instead of an ERROR event."""
        self._call(lambda: setattr(self._api.watches, "gone_as_status", on))

    def set_bookmark_seconds(self, seconds: float) -> None:
        self._call(lambda: setattr(self._api.watches, "bookmark_seconds", seconds))

    def silence_watches(self, on: bool = True) -> None:
        """Keep the connections of the open watches, and send nothing more on them."""

        def silence() -> None:
            self._api.watches.silent_upto = self._api.watches.begun if on else 0
            self._store.wake()

        self._call(silence)

    def break_watches(self) -> None:
        """Break the connections of all watches."""

        def cut() -> None:
            self._api.watches.generation += 1
            self._store.wake()

        self._call(cut)

    def pause(self) -> None:
        """Accept requests and answer none until `resume`; watches send nothing."""

        def shut() -> None:
            self._api.open.clear()
            self._api.watches.silent_upto = self._api.watches.begun

        self._call(shut)

    def resume(self) -> None:
        """Answer again, also the requests that have waited."""

        def reopen() -> None:
            self._api.open.set()
            self._api.watches.silent_upto = 0
            self._store.wake()

        self._call(reopen)

    def stop(self) -> None:
        """Break all connections and refuse new ones until `restart`; the objects are kept."""
        self._run(self._stop_listening())

    def restart(self) -> None:
        """Listen again on the same port."""

        async def again() -> None:
            if self._runner is not None:
                await self._stop_listening()
            await self._listen()

        self._run(again())
