"""A placeholder for PyFlink's Table API: importing a name from it raises an error that says what to use instead."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"Holdfast has no Table API, so {name!r} is not available. Use Spark SQL and DataFrames "
        "with env.from_dataframe() and stream.transform()."
    )
