"""All queries, by name."""

from __future__ import annotations

from typing import Final

from benchmarks.nexmark.changing import CHANGING
from benchmarks.nexmark.joined import JOINS
from benchmarks.nexmark.query import Query
from benchmarks.nexmark.stateless import STATELESS
from benchmarks.nexmark.windows import WINDOWS

QUERIES: Final[dict[str, Query]] = {
    query.name: query
    for query in sorted([*STATELESS, *WINDOWS, *JOINS, *CHANGING], key=lambda query: int(query.name[1:]))
}
