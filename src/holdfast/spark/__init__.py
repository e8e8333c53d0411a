"""The only package that imports pyspark: planning, epochs, sources and placement."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.spark.launch import launch as launch


_MADE_ABOVE = ("transform_with_state", "transform_with_state_in_pandas")


def __getattr__(name: str) -> Any:
    """Import names at first use, so that `holdfast.spark.java` works without pyspark."""
    if name == "launch":
        from holdfast.spark.launch import launch

        return launch
    if name in _MADE_ABOVE:
        # What they return is a stream, which this package knows nothing of; users look for them beside Spark.
        return getattr(import_module("holdfast.datastream.environment.transform_with_state"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
