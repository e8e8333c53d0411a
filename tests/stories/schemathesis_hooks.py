"""What schemathesis may not do to the host that it runs on: savepoints go to one place, and no wish ends the job."""

from __future__ import annotations

import os
from typing import Any

import schemathesis

PLACES = ("target-directory", "targetDirectory")


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    body = case.body
    if not isinstance(body, dict):
        return
    for name in PLACES:
        if isinstance(body.get(name), str) and body[name].strip():
            body[name] = os.environ["SAVEPOINTS"]
    if body.get("cancel-job") is True:
        body["cancel-job"] = False
