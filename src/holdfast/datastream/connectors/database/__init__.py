"""`DatabaseSink`: writes rows into tables of Postgres and SQLite, exactly once, through ADBC."""

from holdfast.datastream.connectors.database.database_sink import DatabaseSink

__all__ = ["DatabaseSink"]
