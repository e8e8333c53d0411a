"""The process that forks the Python workers of a real-time job.

It imports once what each worker would import by itself. All workers start at the same time after a failure, so they
would spend seconds of processor time on it before the first record. Of these imports only the allocator of Arrow
starts a thread, and it handles forks.
"""

import gc
import importlib

import pyarrow as pa
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import holdfast.runtime.realtime.task  # noqa: F401

if __name__ == "__main__":
    pa.array([])  # the first conversion imports pandas, if it is installed
    importlib.import_module("holdfast.datastream")  # each program needs it; it is of a higher layer
    gc.freeze()  # the first collection in a worker would copy the memory that workers share
    manager()
