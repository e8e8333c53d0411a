"""The double of an API server as a process of its own, which can be killed, stopped, and have its clock moved.

    python -m tests.chaos.api_server PORT STORE TOKEN

Server and store are one process: they die and stop together, as a server does whose only etcd is beside it. What is
stored survives, as in etcd: each change is in an SQLite file before it is answered. What a server has only in memory
goes with it: connections, watches, and the history, so that a watch from an older version is told that it has expired.
What is written is not synced: the process dies here, never the machine.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self
from urllib.request import urlopen

import yaml
from aiohttp import web

from holdfast.testing.kubernetes.api_server import MAX_BODY, Api
from holdfast.testing.kubernetes.store import ADMINISTRATOR, Access, Change, User, VersionedStore
from holdfast.testing.server.zookeeper import free_port
from tests.stories.process import ROOT

_START_SECONDS: Final = 120.0


class DurableStore(VersionedStore):
    """A store that a process finds again which is started after another one.

    Args:
        path: An SQLite file, with the last change of each object; that of one which is gone keeps the version.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("pragma synchronous = off")
        self._database.execute("create table if not exists changes (version integer, key text primary key, value text)")
        for version, key, value in self._database.execute("select version, key, value from changes order by version"):
            self.version = version
            if value is not None:
                group, plural, namespace, name = json.loads(key)
                self._objects[group, plural, namespace, name] = json.loads(value)
        self._base, self.compacted = dict(self._objects), self.version

    def _record(self, change: Change) -> None:
        value = None if change.after is None else json.dumps(change.after)
        row = change.version, json.dumps(change.key), value
        self._database.execute("insert or replace into changes values (?, ?, ?)", row)
        super()._record(change)


class OneToken(Access):
    """Knows the administrator by a token that is the same each time."""

    def __init__(self, store: VersionedStore, token: str) -> None:
        super().__init__(store)
        self._administrators = f"Bearer {token}"

    def authenticate(self, authorization: str | None) -> User:
        return ADMINISTRATOR if authorization == self._administrators else super().authenticate(authorization)


class ApiServer:
    """That process.

    Args:
        directory: An empty one, for the store, the kubeconfig and the log.
    """

    def __init__(self, directory: Path) -> None:
        self.kubeconfig: Final = directory / "kubeconfig"
        """That of the administrator."""
        self.log: Final = directory / "api-server.log"
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        token = secrets.token_urlsafe()
        self._command = [sys.executable, "-m", "tests.chaos.api_server", str(port), str(directory / "store"), token]
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(exist_ok=True)
        named = {"cluster": {"server": self._url}, "user": {"token": token}, "context": {"cluster": "it", "user": "it"}}
        lists = {f"{kind}s": [{"name": "it", kind: value}] for kind, value in named.items()}
        self.kubeconfig.write_text(yaml.safe_dump({"kind": "Config", "current-context": "it", **lists}))

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start it, on its port and with what is stored, and wait until it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log, env=_environment())
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The API server does not answer. Its log:\n{self.log.read_text()}")
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def suspend(self) -> None:
        """SIGSTOP."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _answers(self) -> bool:
        with suppress(OSError), urlopen(f"{self._url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
        return False


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}


def main() -> None:
    """What the process does."""
    port, path, token = sys.argv[1:]
    store = DurableStore(Path(path))
    application = web.Application(client_max_size=MAX_BODY)
    application.router.add_route("*", "/{path:.*}", Api(store, OneToken(store, token)).handle)
    web.run_app(application, host="127.0.0.1", port=int(port), access_log=None, print=None, reuse_address=True)


if __name__ == "__main__":
    main()
