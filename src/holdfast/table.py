"""PyFlink's Table API has no counterpart here: importing something from this package says what to use instead."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Refuses every name."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"Holdfast has no Table API, so there is no {name!r}: use Spark SQL, spark.sql(...) and DataFrames, which "
        "env.from_dataframe() and stream.transform() take."
    )
