"""Flink's state for PySpark jobs.

Nothing is imported here, so that a query client pays only for what it uses; the user's entry point is
``holdfast.datastream``. ``docs/architecture.md`` follows a row, a checkpoint, a query and a recovery from file to file.
"""

__version__ = "0.2.0"
