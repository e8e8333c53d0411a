"""`IcebergSink`: rows into tables of Apache Iceberg, exactly once, without a JVM."""

from holdfast.datastream.connectors.iceberg.iceberg_sink import IcebergSink

__all__ = ["IcebergSink"]
