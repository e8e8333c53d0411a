"""Brings the newest Python that Holdfast promises, as Debian testing has it, for the test of the wheel.

    .venv/bin/python scripts/newest_python.py

Machines seldom have it. Its packages come into `.pythons` with the C library that they were built for, which a shell
script starts them with: nothing of it is installed, and what is there stays. Without a network, or where there is no
`dpkg`, it ends with 1, and the test takes the newest that the machine has; in CI it fails.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Final

NEWEST: Final = "3.14"
TARGET: Final = Path(__file__).resolve().parents[1] / ".pythons"
MIRROR: Final = "https://deb.debian.org/debian"
WANTED: Final = (f"python{NEWEST}-minimal", f"libpython{NEWEST}-stdlib", "libstdc++6")
_SECONDS: Final = 60
_FIELD: Final = re.compile(r"^([\w-]+): (.*)$", re.MULTILINE)
_STARTER: Final = """#!/bin/sh
# Python with the C library that it was built for, under the name by which it was called.
root={root}
libraries=$root/usr/lib/{triplet}
exec "$libraries/{loader}" --library-path "$libraries" --argv0 "$0" "$root/usr/lib/python{newest}.bin" "$@"
"""

Fields = dict[str, str]


def main() -> int:
    """Brings it if it is not there."""
    if (TARGET / NEWEST).exists():
        return 0
    TARGET.mkdir(exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=TARGET) as scratch:
            root = Path(scratch, NEWEST)
            for package in needed(packages()):
                archive = Path(scratch, "package.deb")
                archive.write_bytes(fetch(f"{MIRROR}/{package['Filename']}", package["SHA256"]))
                subprocess.run(["dpkg-deb", "-x", str(archive), str(root)], check=True)
            make_starter(root, TARGET / NEWEST)
            root.rename(TARGET / NEWEST)
    except (OSError, ValueError, lzma.LZMAError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"python: no {NEWEST}: {error}\n")
        return 1
    return 0


def packages() -> dict[str, Fields]:
    """Returns what Debian testing has for this kind of machine, by name."""
    asked = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True)
    index = lzma.decompress(fetch(f"{MIRROR}/dists/testing/main/binary-{asked.stdout.strip()}/Packages.xz")).decode()
    found = (dict(_FIELD.findall(entry)) for entry in index.split("\n\n"))
    return {fields["Package"]: fields for fields in found if fields}


def needed(known: dict[str, Fields]) -> list[Fields]:
    """Returns the packages that are wanted and what they depend on; of alternatives the first."""
    names, found = list(WANTED), dict[str, Fields]()
    while names:
        name = names.pop()
        if name in found or name not in known:
            continue
        found[name] = known[name]
        depends = ", ".join(filter(None, (known[name].get("Depends"), known[name].get("Pre-Depends"))))
        names += [re.split(r"[ :|(]", one.strip())[0] for one in depends.split(",")]
    missing = set(WANTED) - set(found)
    if missing:
        raise ValueError(f"{MIRROR} has no {', '.join(sorted(missing))}")
    return list(found.values())


def make_starter(root: Path, final: Path) -> None:
    """Puts a script in the place of the program."""
    program = root / "usr" / "bin" / f"python{NEWEST}"
    [library] = root.glob("usr/lib/*/libc.so.6")
    loader = next(library.parent.glob("ld-linux*.so.*"))
    shutil.move(program, root / "usr" / "lib" / f"python{NEWEST}.bin")
    program.write_text(
        _STARTER.format(root=final, triplet=library.parent.name, loader=loader.name, newest=NEWEST), encoding="utf-8"
    )
    program.chmod(0o755)


def fetch(url: str, digest: str | None = None) -> bytes:
    """Downloads all of it, and compares it with a hash."""
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
        content: bytes = answer.read()
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{url} is another file than the one that is listed")
    return content


if __name__ == "__main__":
    sys.exit(main())
