"""Download jars from Maven Central into the environment of this Python, and check the hash of each.

    .venv/bin/python scripts/jars.py kafka
    .venv-docs/bin/python scripts/jars.py mermaid

The first line downloads the jars of `requirements-kafka.lock` to `.venv/kafka`. Jars that are there already are kept.
Without a network the exit code is 1: tests that need the server skip, and `make docs` fails.
"""

from __future__ import annotations

import hashlib
import re
import sys
import urllib.request
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CENTRAL: Final = "https://repo1.maven.org/maven2"
_LINE: Final = re.compile(r"([\w.-]+):([\w.-]+):([\w.-]+) sha256:([0-9a-f]{64})")
_SECONDS: Final = 60


def main(server: str) -> int:
    """Downloads what is missing."""
    target = Path(sys.prefix, server)
    problem = bring_all(ROOT / f"requirements-{server}.lock", target)
    if problem:
        sys.stderr.write(f"{server}: {problem}\n")
        return 1
    (target / ".done").touch()
    return 0


def bring_all(lock: Path, target: Path) -> str | None:
    """Makes sure that a directory holds the jars of a lock file and no others; what is wrong if it does not."""
    target.mkdir(exist_ok=True)
    wanted = set()
    for line in lock.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            return f"{lock.name} has a line that is no coordinate with its hash: {line!r}"
        group, artifact, version, digest = found.groups()
        name = f"{artifact}-{version}.jar"
        wanted.add(name)
        problem = bring(f"{CENTRAL}/{group.replace('.', '/')}/{artifact}/{version}/{name}", target / name, digest)
        if problem:
            return problem
    for jar in target.glob("*.jar"):
        if jar.name not in wanted:
            jar.unlink()
    return None


def bring(url: str, path: Path, digest: str) -> str | None:
    """Makes sure that the file is there with this hash; what is wrong if it is not."""
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
        return None
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            content: bytes = answer.read()
    except OSError as error:
        return f"{url} cannot be had: {error}"
    if hashlib.sha256(content).hexdigest() != digest:
        return f"{url} is another file than the one that is locked"
    partial = path.with_suffix(".part")
    partial.write_bytes(content)
    partial.replace(path)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
