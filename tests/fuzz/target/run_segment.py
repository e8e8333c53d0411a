"""One segment of a run, any bytes with a checksum that is right, in a footer that says what they should be."""

import json
from functools import cache
from typing import Any

from holdfast.state.run.run_footer import HEADER
from tests.fuzz.target import run_footer

PATH = run_footer.PATH


@cache
def entry() -> tuple[dict[str, Any], dict[str, Any]]:
    """A footer, and what it says of the state whose segment is replaced."""
    footer = json.loads(run_footer.whole()[1])
    return footer, next(one for one in footer["segments"] if one["name"] == "map")


def seed() -> bytes:
    """The segment as it was written."""
    _, one = entry()
    return run_footer.segments()[one["offset"] : one["offset"] + one["length"]]


def parse(data: bytes) -> None:
    footer, one = entry()
    segment = one | {"offset": len(HEADER), "length": len(data)}
    body = HEADER + data + bytes(-len(data) % 64)
    run_footer.read(run_footer.sealed_run(body, json.dumps(footer | {"segments": [segment]}).encode()))
