"""Brings the jars of a Kafka broker, which tests start, into the environment: from Maven Central, each by its hash.

    .venv/bin/python scripts/kafka_jars.py

What is there and right stays. Without a network it ends with 1, and the tests that need a broker say that they skip.
"""

from __future__ import annotations

import hashlib
import re
import sys
import urllib.request
from pathlib import Path
from typing import Final

LOCK: Final = Path(__file__).resolve().parents[1] / "requirements-kafka.lock"
TARGET: Final = Path(sys.prefix, "kafka")
CENTRAL: Final = "https://repo1.maven.org/maven2"
_LINE: Final = re.compile(r"([\w.-]+):([\w.-]+):([\w.-]+) sha256:([0-9a-f]{64})")
_SECONDS: Final = 60


def main() -> int:
    """Downloads what is missing."""
    TARGET.mkdir(exist_ok=True)
    jars = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    wanted = set()
    for line in jars:
        found = _LINE.fullmatch(line)
        if found is None:
            sys.stderr.write(f"kafka: {LOCK.name} has a line that is no coordinate with its hash: {line!r}\n")
            return 1
        group, artifact, version, digest = found.groups()
        name = f"{artifact}-{version}.jar"
        wanted.add(name)
        problem = bring(f"{CENTRAL}/{group.replace('.', '/')}/{artifact}/{version}/{name}", TARGET / name, digest)
        if problem:
            sys.stderr.write(f"kafka: {problem}\n")
            return 1
    for jar in TARGET.glob("*.jar"):
        if jar.name not in wanted:
            jar.unlink()
    (TARGET / ".done").touch()
    return 0


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
        return f"{url} is another file than the one in {LOCK.name}"
    partial = path.with_suffix(".part")
    partial.write_bytes(content)
    partial.replace(path)
    return None


if __name__ == "__main__":
    sys.exit(main())
