"""The process that forks the Python workers of a real-time job.

It imports once what each worker would import by itself. All workers start at the same time after a failure, so they
would spend seconds of processor time on it before the first record. Of these imports only the allocator of Arrow
starts a thread, and it handles forks.
"""

import gc
import importlib
import sys
from pathlib import Path
from zipimport import ZipImportError, zipimporter


def prefer_installed_pyspark() -> None:
    """Import PySpark from its directory, if there is one of the same version, and not from the zip file in front of it.

    Spark names the zip file first. It has no byte code, so its modules would be compiled again: half a second.
    """
    version = Path("pyspark", "version.py")
    for archive in [path for path in sys.path if path.endswith("pyspark.zip")]:
        try:
            zipped = zipimporter(archive).get_data(str(Path(archive, version)))
        except (ZipImportError, OSError):
            continue
        if any(file.is_file() and file.read_bytes() == zipped for file in (Path(path, version) for path in sys.path)):
            sys.path.remove(archive)
            sys.path.append(archive)


gc.disable()  # imports make no garbage, and collections take an eighth of their time
prefer_installed_pyspark()

import pyarrow as pa  # noqa: E402
import pyspark.worker  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

import holdfast.spark.realtime_engine  # noqa: E402, F401


def prepare() -> None:
    """Do once what each worker would do before its first record."""
    importlib.import_module("holdfast.datastream")  # all programs import it, but this package is in a layer below
    pa.array([0])  # imports pandas, if it is installed
    # A worker tells all finders that files may have changed, and those of zip files read their directories again:
    # a fifth of a second for that of PySpark. They are made again when they are needed.
    for path in [path for path, finder in sys.path_importer_cache.items() if isinstance(finder, zipimporter)]:
        del sys.path_importer_cache[path]
    gc.enable()
    gc.freeze()  # the first collection in a worker would copy the memory that workers share


if __name__ == "__main__":
    prepare()
    manager()
