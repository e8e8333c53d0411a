"""The only package that imports pyspark: planning, epochs, sources and placement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.spark.launch import launch as launch


def __getattr__(name: str) -> Any:
    """Imports `launch` when it is asked for, so that `holdfast.spark.java` works without pyspark."""
    if name == "launch":
        from holdfast.spark.launch import launch

        return launch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
