"""What went wrong in Spark, in terms of our error tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import AnalysisException

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.engine import EngineError, EngineLostError, InputError
from holdfast.spark.worker import error_in

_UNREADABLE: Final = (
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "PATH_NOT_FOUND",
    "is not a Parquet file",
    "AccessDeniedException",
    "AccessControlException",
    "Permission denied",
)
"""How Spark and Hadoop say that a file cannot be read, and that it will not be better the next time.

Not `FAILED_READ_FILE` alone: that also stands for storage that does not answer for a while.
"""


def translate(failure: BaseException, doing: str) -> HoldfastError:
    """The error to raise for an exception of Spark; raise it `from` the exception."""
    if isinstance(failure, HoldfastError):
        return failure
    own = error_in(failure)
    if own is not None:
        return own
    if _is_lost(failure):
        return _lost(failure, doing)
    if "No module named 'holdfast'" in str(failure):
        return ConfigurationError(
            "the Python workers of Spark cannot import holdfast: set PYSPARK_PYTHON to a Python that has it before the "
            "session starts, or ship it with spark.submit.pyFiles or spark.archives"
        )
    if isinstance(failure, AnalysisException):
        # A new attempt would plan the same.
        return ConfigurationError(f"Spark cannot plan what the program asks for (while {doing}): {failure}")
    if any(sign in str(failure) for sign in _UNREADABLE):
        return InputError(f"Spark cannot read an input (while {doing}): {failure}")
    return EngineError(f"Spark failed while {doing}: {failure}")


@contextmanager
def final_failures_told(doing: str) -> Iterator[None]:
    """Makes what no restart can cure an error of ours; other exceptions pass as they are.

    Raises:
        EngineLostError: The JVM is gone.
        ConfigurationError: Spark cannot plan what the program asks for.
    """
    try:
        yield
    except HoldfastError:
        raise
    except Exception as failure:
        if _is_lost(failure) or isinstance(failure, AnalysisException):
            raise translate(failure, doing) from failure
        raise


def _lost(failure: BaseException, doing: str) -> EngineLostError:
    return EngineLostError(
        f"the Spark driver's JVM is gone (while {doing}: {type(failure).__name__}); run the job again, it resumes from "
        "its last completed checkpoint"
    )


def _is_lost(failure: BaseException) -> bool:
    """Whether a call failed because there is no JVM any more.

    The socket says it in several ways: refused, reset, or closed, and after the last py4j raises a plain `Py4JError`,
    which also stands for much else; so then the JVM is asked.
    """
    if isinstance(failure, Py4JNetworkError | ConnectionError | EOFError):
        return True
    return isinstance(failure, Py4JError) and not isinstance(failure, Py4JJavaError) and not _answers()


def _answers() -> bool:
    gateway = SparkContext._gateway
    try:
        return gateway is not None and gateway.jvm.java.lang.System.nanoTime() is not None
    except Exception:
        return False
