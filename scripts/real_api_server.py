"""Runs a command against a real Kubernetes API server, made for it on this machine.

    python scripts/real_api_server.py --directory DIR [COMMAND...]

Builds etcd and kube-apiserver from their published Go modules into DIR (with Go 1.26 or later; about ten minutes on two
cores, and only once), starts them, and runs the command, by default the tests of Kubernetes. HOLDFAST_TEST_KUBECONFIG
names an administrator's kubeconfig, HOLDFAST_TEST_API_SERVER the processes of both, for whoever wants to stop them.
There are no kubelets and no controllers: high availability needs none.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

KUBERNETES = "1.36.3"
ETCD = "v3.7.3"
TESTS = (sys.executable, "-m", "pytest", "tests/services/kubernetes", "-q")
MAIN = """package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
"""
TOOLS = """//go:build tools

package main

import _ "go.etcd.io/etcd/server/v3"
"""


def main() -> int:
    """Builds, starts, runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    build(directory)
    with contextlib.ExitStack() as stack:
        kubeconfig, pids = start(directory, stack)
        environment = {
            **os.environ,
            "HOLDFAST_TEST_KUBECONFIG": str(kubeconfig),
            "HOLDFAST_TEST_API_SERVER": " ".join(map(str, pids)),
        }
        return subprocess.run(arguments.command or TESTS, env=environment, check=False).returncode


def build(directory: Path) -> None:
    """Builds what is missing."""
    source = directory / "source"
    source.mkdir(exist_ok=True)
    programs = {"kube-apiserver": ".", "etcd": "go.etcd.io/etcd/server/v3"}
    if all((directory / program).exists() for program in programs):
        return

    def go(*arguments: str) -> str:
        return subprocess.run(("go", *arguments), cwd=source, check=True, stdout=subprocess.PIPE, text=True).stdout

    (source / "main.go").write_text(MAIN)
    (source / "tools.go").write_text(TOOLS)
    (source / "go.mod").write_text("module realapi\n\ngo 1.26.0\n")
    path = go("list", "-m", "-f", "{{.GoMod}}", f"k8s.io/kubernetes@v{KUBERNETES}").strip()
    # Kubernetes refers to its own parts by directory; they are published as modules of version 0.
    parts = sorted(set(re.findall(r"(k8s\.io/[a-z0-9-]+) => \./staging", Path(path).read_text())))
    minor = KUBERNETES.partition(".")[2]
    lines = [f"require k8s.io/kubernetes v{KUBERNETES}", f"require go.etcd.io/etcd/server/v3 {ETCD}"]
    lines += [f"replace {part} => {part} v0.{minor}" for part in parts]
    (source / "go.mod").write_text("module realapi\n\ngo 1.26.0\n\n" + "\n".join(lines) + "\n")
    go("mod", "tidy")
    for program, package in programs.items():
        go("build", "-ldflags", "-s -w", "-o", str(directory / program), package)


def start(directory: Path, stack: contextlib.ExitStack) -> tuple[Path, tuple[int, int]]:
    """Starts both servers, waits until they answer, and returns the kubeconfig and their process ids."""
    state = directory / f"run-{os.getpid()}"
    state.mkdir()
    authority, serving, admin = make_certificates(state)
    client, peer, secure = (f"http://127.0.0.1:{free_port()}" for _ in range(3))
    etcd = stack.enter_context(
        running(
            state / "etcd.log",
            directory / "etcd",
            f"--data-dir={state / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
        )
    )
    port = secure.rpartition(":")[2]
    api_server = stack.enter_context(
        running(
            state / "kube-apiserver.log",
            directory / "kube-apiserver",
            f"--etcd-servers={client}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={serving}.crt",
            f"--tls-private-key-file={serving}.key",
            f"--client-ca-file={authority}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={state / 'tokens.key'}",
            f"--service-account-signing-key-file={state / 'tokens.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
        )
    )
    server = f"https://127.0.0.1:{port}"
    context = {"cluster": "real", "user": "admin", "namespace": "default"}
    user = {"client-certificate": f"{admin}.crt", "client-key": f"{admin}.key"}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "real",
        "clusters": [{"name": "real", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "admin", "user": user}],
        "contexts": [{"name": "real", "context": context}],
    }
    path = state / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    wait_until_ready(server, authority, state)
    return path, (etcd, api_server)


def make_certificates(state: Path) -> tuple[Path, Path, Path]:
    """Writes an authority, a server's and an administrator's certificate, and the key of tokens."""
    ca = trustme.CA()
    authority, serving, admin = state / "authority.crt", state / "serving", state / "admin"
    ca.cert_pem.write_to_path(str(authority))
    issued = {
        serving: ca.issue_cert("127.0.0.1", "localhost"),
        admin: ca.issue_cert("admin@holdfast.test", common_name="admin", organization_name="system:masters"),
    }
    for path, certificate in issued.items():
        certificate.private_key_pem.write_to_path(f"{path}.key")
        certificate.cert_chain_pems[0].write_to_path(f"{path}.crt")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (state / "tokens.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return authority, serving, admin


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(log: Path, *command: object) -> Iterator[int]:
    """Runs a program, whose process id it yields, for as long as the block does."""
    with log.open("wb") as output:
        process = subprocess.Popen([*map(str, command)], stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(30)


def wait_until_ready(server: str, authority: Path, state: Path) -> None:
    """Waits until the API server says that it is ready."""
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(f"{state / 'admin'}.crt", f"{state / 'admin'}.key")
    deadline = time.monotonic() + 120
    with httpx2.Client(verify=context, timeout=5) as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx2.HTTPError):
                if client.get(f"{server}/readyz").status_code == 200:
                    return
            time.sleep(0.5)
    raise SystemExit(f"the API server does not get ready; see {state}")


if __name__ == "__main__":
    sys.exit(main())
