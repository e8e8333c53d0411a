"""One segment of a run, any bytes with a checksum that is right, in a footer that says what they should be.

Who writes such a run may write to the storage. Sizes and bounds of buffers are checked when it is read; offsets inside
of them are not, as docs/security.md says: what Arrow finds wrong with those is not read any further here.
"""

import json
from functools import cache
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.state.run_file import HEADER, forget_runs, handle_of, open_run
from tests.fuzz.document import replaced
from tests.fuzz.target import run_footer

PATH = run_footer.PATH


@cache
def entry() -> tuple[dict[str, Any], dict[str, Any]]:
    """A footer, and what it says of the state whose segment is replaced."""
    footer = json.loads(run_footer.whole()[1])
    return footer, next(one for one in footer["segments"] if one["name"] == "map")


def parse(data: bytes) -> None:
    footer, one = entry()
    segment = one | {"offset": len(HEADER), "length": len(data)}
    body = HEADER + data + bytes(-len(data) % 64)
    run = run_footer.sealed_run(body, json.dumps(footer | {"segments": [segment]}).encode())
    forget_runs()
    replaced(run_footer.FILE, run)
    job = run_footer.JOB
    found = open_run(job.fs, job.path, handle_of(job.fs, job.path, run_footer.FILE.name)).segment("map")
    assert found is not None
    try:
        for part in found.parts:
            part.table.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise HoldfastError(f"{PATH} has offsets that lead nowhere") from error
    run_footer.read(run)
