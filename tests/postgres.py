"""A real Postgres of one's own: the server of the distribution, on a temporary directory and a free port."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Final, Self

import pytest

from holdfast.testing.server.zookeeper import free_port

UNPRIVILEGED: Final = ("postgres", "nobody")
"""Who runs the server if the tests run as root, as which Postgres does not start."""

FAST: Final = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c shared_buffers=16MB"
"""For tests: processes die in them, the machine does not."""


def programs() -> Path | None:
    """Where the programs of the server are; None if it is not installed."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists() and (place / "pg_ctl").exists()), None)


def require_postgres() -> Path:
    """The programs of the server. A machine without it skips the test, the CI fails."""
    place = programs()
    if place is None:
        reason = "no Postgres server: install it, for instance apt-get install postgresql"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return place


class PostgresServer:
    """A server that is started and stopped by its owner; its data stay until it is closed."""

    def __init__(self, settings: str = FAST) -> None:
        self._programs = require_postgres()
        self._directory = Path(mkdtemp(prefix="postgres-"))
        self._user = self._as_user()
        self._settings = settings
        self.port = free_port()
        self._call("initdb", "-D", str(self._data), "-U", "holdfast", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        self.start()

    @property
    def uri(self) -> str:
        return f"postgresql://holdfast@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -k {self._directory} -h 127.0.0.1 {self._settings}"
        log = str(self._directory / "log")
        self._call("pg_ctl", "-D", str(self._data), "-l", log, "-w", "-t", "60", "-o", options, "start")

    def stop(self) -> None:
        self._call("pg_ctl", "-D", str(self._data), "-w", "-t", "60", "-m", "immediate", "stop")

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    def _as_user(self) -> dict[str, int]:
        if os.geteuid() != 0:
            return {}
        for name in UNPRIVILEGED:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            os.chown(self._directory, entry.pw_uid, entry.pw_gid)
            return {"user": entry.pw_uid, "group": entry.pw_gid}
        raise AssertionError(f"there is no user {' or '.join(UNPRIVILEGED)} as whom Postgres could run")

    def _call(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        # Not through a pipe: the server would hold it open.
        with (self._directory / "output").open("w+", encoding="utf-8") as output:
            done = subprocess.run(
                command, stdout=output, stderr=output, cwd="/", check=False, extra_groups=[] if self._user else None,
                **self._user,
            )  # type: ignore[call-overload]  # fmt: skip
            output.seek(0)
            assert done.returncode == 0, f"{command}: {output.read()}"
