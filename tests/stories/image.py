"""The image of `deploy/Dockerfile`, built by an engine and nobody's registry, and containers of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, Self

import pyspark
import pytest

from tests.stories.process import ROOT, children, command_of

DOCKERFILE: Final = ROOT / "deploy" / "Dockerfile"
PROGRAMS: Final = ("buildah", "runc", "debootstrap")
_NAME: Final = "holdfast"
_BASE: Final = "python3-venv,python-is-python3,ca-certificates"
"""What Debian needs to have to stand in for the base image, which is Debian and a Python."""


def require_engine() -> None:
    """Skips by name where no image can be built, but not in CI."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if not missing and os.geteuid() == 0:
        return
    packages = f"apt-get install {' '.join(missing)}" if missing else "run this as root"
    reason = f"no image can be built here: {packages}"
    if os.environ.get("CI") and not os.environ.get("SPARK"):
        pytest.fail(reason)
    pytest.skip(reason)


class Image:
    """The image in a store of its own, and the containers that were started from it.

    Args:
        shared: A directory that all containers see under its name, and in which the user of the image may write.
    """

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        self._directory = Path(mkdtemp(prefix="image-", dir="/var/tmp"))  # 3 GB: not in memory
        store = ("--root", str(self._directory / "store"), "--runroot", str(self._directory / "run"))
        self._buildah = ("buildah", *store)
        # runc knows each layout of control groups. The network is the machine's: none is made, and none is left.
        self._isolation = ("--isolation", "oci", "--runtime", "runc", "--network", "host")
        self._running: list[subprocess.Popen[bytes]] = []
        self._config: dict[str, Any] = {}

    def build(self) -> None:
        """Builds it from the Dockerfile as it is."""
        self._bring_base()
        given = self._bring_spark()
        mounts = ("--volume", f"{given}:/given:ro", "--volume", f"{given}/pip.conf:/etc/pip.conf:ro")
        version = ("--build-arg", f"SPARK={pyspark.__version__}")
        self._call("bud", *self._isolation, "--pull-never", *mounts, *version, "-f", DOCKERFILE, "-t", _NAME, ROOT)
        self._config = json.loads(self._call("inspect", "--type", "image", _NAME))["OCIv1"]["config"]
        user = int(self._config["User"])
        os.chown(self.shared, user, user)

    @property
    def command(self) -> list[str]:
        """What a container runs if nobody says what."""
        command: list[str] = self._config["Cmd"]
        return command

    def run(self, *command: object, volumes: Sequence[str] = ()) -> str:
        """What a command says in a container, which sees directories of this machine under other names."""
        # Docker makes the name of a container known in it; here it has an address for a name.
        host = ("--hostname", "127.0.0.1", "--env=SPARK_LOCAL_IP=127.0.0.1")
        return _run(*self._in_container(*command, options=[*host, *(f"--volume={volume}" for volume in volumes)]))

    def start(
        self, *command: object, host: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Runs a command in a container as long as it likes, on an address that is a host to Spark."""
        variables = [f"--env={name}={at}" for name, at in {**(environment or {}), "SPARK_LOCAL_IP": host}.items()]
        volumes = [f"--volume={self.shared}:{self.shared}", f"--volume={ROOT / 'tests'}:/programs/tests:ro"]
        words = self._in_container(*command, options=("--hostname", host, *variables, *volumes))
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._running.append(process)
        return process

    def close(self) -> None:
        """Ends what runs, and leaves nothing."""
        for process in self._running:
            while process.poll() is None:
                # The first process of a container takes the others with it, and the engine clears away.
                for first in processes(process, Path(self._config["Entrypoint"][0]).name):
                    with suppress(ProcessLookupError):
                        os.kill(first, signal.SIGKILL)
                time.sleep(0.05)
        self._call("rm", "--all")
        shutil.rmtree(self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bring_base(self) -> None:
        """Debian of the release that the Dockerfile names, under the name of the image that it begins with."""
        [(name, release)] = set(re.findall(r"^FROM (python:\S+-(\w+))", DOCKERFILE.read_text(), re.MULTILINE))
        container = self._call("from", "scratch").strip()
        root = self._call("mount", container).strip()
        _run("debootstrap", "--variant=minbase", f"--include={_BASE}", release, root)
        self._call("umount", container)
        self._call("commit", "--rm", container, f"docker.io/library/{name}")

    def _bring_spark(self) -> Path:
        """The wheel of Spark, of which PyPI has the source only, and settings by which pip finds it."""
        given = self._directory / "given"
        given.mkdir()
        _run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", given, f"pyspark=={pyspark.__version__}")
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", given)  # whom this machine trusts, for its way to PyPI
        (given / "pip.conf").write_text("[global]\nfind-links = /given\ncert = /given/ca-certificates.crt\n")
        return given

    def _in_container(self, *command: object, options: Sequence[str] = ()) -> list[str]:
        """A command by the entry point of the image and as its user, in a container of its own."""
        container = self._call("from", "--pull-never", _NAME).strip()
        words = [*self._config["Entrypoint"], *map(str, command)]
        return [*self._buildah, "run", *self._isolation, *options, container, *words]

    def _call(self, *arguments: object) -> str:
        return _run(*self._buildah, *arguments)


def processes(above: subprocess.Popen[bytes], name: str, runs: str = "") -> Iterator[int]:
    """The processes of a program, in a container and seen from outside, whose command names this."""
    waiting = [above.pid]
    while waiting:
        for child in children(waiting.pop()):
            waiting.append(child)
            with suppress(FileNotFoundError, ProcessLookupError):
                if command_of(child) == name and runs in Path(f"/proc/{child}/cmdline").read_text():
                    yield child


def _run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout
