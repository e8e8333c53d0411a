"""`DeltaSink`: rows into tables of Delta Lake, exactly once, without a JVM."""

from holdfast.datastream.connectors.delta.delta_sink import DeltaSink

__all__ = ["DeltaSink"]
