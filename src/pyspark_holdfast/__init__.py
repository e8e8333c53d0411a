"""Registers `spark.read.format("holdfast")`: Spark imports the `DefaultSource` of modules named `pyspark_*`."""

from __future__ import annotations

from pyspark_holdfast.state_source import StateDataSource as DefaultSource

__all__ = ["DefaultSource"]
