"""Brings the schema registry that long tests start into the environment: Apicurio's, from Maven Central, by its hash.

    .venv/bin/python scripts/schema_registry.py

What is there stays. Without a network it ends with 1, and the tests that need a registry say that they skip.
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.jars import CENTRAL, bring

VERSION: Final = "2.6.13.Final"
"""The last one that runs on Java 17."""
DIGEST: Final = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
TARGET: Final = Path(sys.prefix, "registry")


def main() -> int:
    """Downloads and unpacks it."""
    done = TARGET / ".done"
    if done.exists() and done.read_text() == DIGEST:
        return 0
    TARGET.mkdir(exist_ok=True)
    name = f"apicurio-registry-app-{VERSION}-all.tar.gz"
    archive = TARGET / name
    problem = bring(f"{CENTRAL}/io/apicurio/apicurio-registry-app/{VERSION}/{name}", archive, DIGEST)
    if problem:
        sys.stderr.write(f"schema registry: {problem}\n")
        return 1
    with tarfile.open(archive) as content:
        content.extractall(TARGET, filter="data")
    archive.unlink()
    done.write_text(DIGEST)
    return 0


if __name__ == "__main__":
    sys.exit(main())
