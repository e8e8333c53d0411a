"""What went wrong in Spark, in terms of our error tree."""

from __future__ import annotations

from py4j.protocol import Py4JNetworkError

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.engine import EngineError, EngineLostError
from holdfast.spark.worker import error_in


def translate(failure: BaseException, doing: str) -> HoldfastError:
    """The error to raise for an exception of Spark; raise it `from` the exception."""
    if isinstance(failure, HoldfastError):
        return failure
    own = error_in(failure)
    if own is not None:
        return own
    if isinstance(failure, Py4JNetworkError | ConnectionError | EOFError):
        return EngineLostError(
            f"the Spark driver's JVM is gone (while {doing}: {type(failure).__name__}); run the job again, it "
            "resumes from its last completed "
            "checkpoint"
        )
    if "No module named 'holdfast'" in str(failure):
        return ConfigurationError(
            "the Python workers of Spark cannot import holdfast: set PYSPARK_PYTHON to a Python that has it before the "
            "session starts, or ship it with spark.submit.pyFiles or spark.archives"
        )
    return EngineError(f"Spark failed while {doing}: {failure}")
