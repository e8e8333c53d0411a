"""A strict Kubernetes API server for tests: real HTTP, documented behaviour, and faults on order.

It serves what a client of ConfigMaps and Leases can meet: optimistic locking by resource versions, watches with
bookmarks and expired history, label and field selectors, chunked lists, patches, preconditions, validation, tokens,
Roles and RoleBindings, access reviews. It is no cluster: nothing runs on it, and no controller changes objects.

Tests that use only `kubeconfig` run unchanged against a real cluster; everything else here is for breaking things.

    with KubernetesApiServer() as server:
        path = server.write_kubeconfig(tmp_path / "kubeconfig")
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import trustme
import yaml
from aiohttp import web

from holdfast.testing.kubernetes.access import ADMINISTRATOR, Access, User
from holdfast.testing.kubernetes.fault import Fault, FaultKind
from holdfast.testing.kubernetes.http import MAX_BODY, Api, Served
from holdfast.testing.kubernetes.object import RBAC
from holdfast.testing.kubernetes.store import VersionedStore

__all__ = ["Fault", "FaultKind", "KubernetesApiServer", "Served"]

Json = dict[str, Any]
_T = TypeVar("_T")

_WAIT_SECONDS = 30.0


class KubernetesApiServer:
    """The server, in a thread of its own.

    Args:
        tls: HTTPS with a certificate of an authority of its own, which the kubeconfig carries; else plain HTTP.
        namespaces: those that exist besides `default`.
        seed: makes the gaps between resource versions repeatable.
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
        """Listen on a free port of the loopback address."""
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
        """The address."""
        return f"{'https' if self._authority else 'http'}://127.0.0.1:{self._port}"

    @property
    def administrator_token(self) -> str:
        """The token of a user who may do everything."""
        return self._administrator

    def add_user(self, name: str, rules: list[Json] | None = None, namespace: str = "default") -> str:
        """A token for a user, who may do in a namespace what `rules` (of a Role) allow, and nothing else."""

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
        """The token is answered 401 from now on."""
        self._call(lambda: self._access.revoke(token))

    def kubeconfig(self, token: str | None = None, namespace: str = "default") -> Json:
        """A kubeconfig for a token, by default the administrator's."""
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
        """The same as a file; answers its path."""
        path.write_text(yaml.safe_dump(self.kubeconfig(token, namespace)))
        return path

    # -- what is inside -----------------------------------------------------------------------------------------

    def create_namespace(self, name: str) -> None:
        """Add a namespace."""
        self._call(lambda: self._create_namespace(name))

    def _create_namespace(self, name: str) -> None:
        value = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name, "uid": f"namespace-{name}"}}
        self._store.put(("", "namespaces", "", name), value)

    def peek(self, plural: str, name: str, namespace: str = "default", group: str = "") -> Json | None:
        """An object as it is in the store, past all faults."""
        return self._call(lambda: self._store.get((group, plural, namespace, name)))

    @property
    def requests(self) -> list[Served]:
        """What was served, in order."""
        return self._call(lambda: list(self._api.log))

    # -- faults -------------------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        """Order a fault."""
        self._api.faults.add(fault)

    def clear_faults(self) -> None:
        """Forget the faults that have not struck."""
        self._api.faults.clear()

    @property
    def pending_faults(self) -> int:
        """How many ordered faults have not been used up."""
        return self._api.faults.pending

    def compact(self) -> None:
        """Forget the history: watches and lists from an older version get 410."""
        self._call(self._store.compact)

    def answer_gone_by_status(self, on: bool = True) -> None:
        """Answer expired watches by the HTTP status instead of an ERROR event."""
        self._call(lambda: setattr(self._api.watches, "gone_as_status", on))

    def set_bookmark_seconds(self, seconds: float) -> None:
        """How often watches get bookmarks."""
        self._call(lambda: setattr(self._api.watches, "bookmark_seconds", seconds))

    def silence_watches(self, on: bool = True) -> None:
        """Keep the connections of the watches that are open now, and send nothing on them any more."""

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
        """Accept requests and answer none until `resume`; watches fall silent."""

        def shut() -> None:
            self._api.open.clear()
            self._api.watches.silent_upto = self._api.watches.begun

        self._call(shut)

    def resume(self) -> None:
        """Answer again, also the requests that have been waiting."""

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
