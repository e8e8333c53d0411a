"""The process that forks the Python workers of a real-time job.

It imports once what each worker would import by itself. All workers start at the same time after a failure, so they
would spend seconds of processor time on it before the first record. Of these imports only the allocator of Arrow
starts a thread, and it handles forks.
"""

import gc
import importlib
import sys
from zipimport import zipimporter

import pyarrow as pa
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import holdfast.spark.realtime_engine  # noqa: F401


def prepare() -> None:
    """Do once what each worker would do before its first record."""
    importlib.import_module("holdfast.datastream")  # all programs import it, but this package is in a layer below
    pa.array([0])  # imports pandas, if it is installed
    # A worker tells all finders that files may have changed, and those of zip files read their directories again:
    # a fifth of a second for that of PySpark. They are made again when they are needed.
    for path in [path for path, finder in sys.path_importer_cache.items() if isinstance(finder, zipimporter)]:
        del sys.path_importer_cache[path]
    gc.freeze()  # the first collection in a worker would copy the memory that workers share


if __name__ == "__main__":
    prepare()
    manager()
