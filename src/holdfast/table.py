"""A placeholder for PyFlink's Table API: importing a name from it raises an error that says what to use instead."""

from __future__ import annotations

import sys
from typing import Any

from holdfast.common.flink_paths import refusal


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    message = (
        f"Holdfast has no Table API, so {name!r} is not available. Use Spark SQL and DataFrames "
        "with env.from_dataframe() and stream.transform()."
    )
    raise refusal(message, sys._getframe(1))
