"""Translate exceptions of Spark into Holdfast's errors, with the root cause in one sentence.

Spark reports a stack trace of Java that contains stack traces of Python. Its first line, such as `An error occurred
while calling o1027.start`, has a number that changes each time.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import AnalysisException

from holdfast.errors import (
    ConfigurationError,
    EngineError,
    EngineLostError,
    EngineUnavailableError,
    HoldfastError,
    InputError,
    InputGoneError,
    RestoreError,
)
from holdfast.kernel.failure_text import NO_TEXT, innermost_cause
from holdfast.spark.unavailable import is_unavailable
from holdfast.spark.worker import CRASHED, error_in

_DEEPEST: Final = 50

_UNREADABLE: Final = (
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "PATH_NOT_FOUND",
    "is not a Parquet file",
    "AccessDeniedException",
    "AccessControlException",
    "Permission denied",
)
"""Texts of Spark and Hadoop about a file that cannot be read, also at the next try.

Not `FAILED_READ_FILE` alone: that also stands for storage that does not answer for a while.
"""


FATAL_IN_SPARK: Final = (ConfigurationError, EngineLostError, InputGoneError, RestoreError)
"""Errors that another attempt meets again."""

_MISSING: Final = ("ModuleNotFoundError", "PACKAGE_NOT_INSTALLED", "UNSUPPORTED_PACKAGE_VERSION")
"""Texts of Python and PySpark about a missing package."""

_PYTHON: Final = re.compile(
    r'Cannot run program "[^"\n]*"[^\n]*\berror(?:=|: )(?:2|13)\b[^\n]*|\[PYTHON_VERSION_MISMATCH\][^\n]*'
)
"""Texts of Java about a Python that is missing or not executable, and of PySpark about a wrong version."""

_ROWS_GONE: Final = (
    "KAFKA_DATA_LOSS",
    'option "failOnDataLoss"',
    "option `failOnDataLoss`",
    "OffsetOutOfRangeException",
    "Cannot fetch offset",
    "Some data may have been lost",
    "Some data may be lost",
)
"""Texts of sources about rows that were lost before the job read them."""

_MISMATCH: Final = ("sources in the checkpoint offsets", "OFFSET_CHECKPOINT_MISMATCH")
"""Texts of Spark about a checkpoint with positions of other inputs."""

_NO_DETAILS: Final = "but the JVM gives no details"

_ENDING: Final = (
    "SparkContext was shut down",
    "stopped SparkContext",
    'SparkContext.dagScheduler()" is null',
    "Shutdown in progress",
    "Exiting due to error from cluster scheduler",
    "All masters are unresponsive",
    "Master removed our application",
    "Yarn application has already exited",
    "Max number of executor failures",
    _NO_DETAILS,
)
"""Texts of a Spark driver that is ending, while it still answers."""


class TaskFailure(Exception):
    """A failure of a task as Spark recorded it, with the stack traces in its text."""


def translate(failure: BaseException, doing: str) -> HoldfastError:
    """Return the error to raise for an exception of Spark; raise it `from` the exception, which has the details."""
    if isinstance(failure, HoldfastError):
        return failure
    own = error_in(failure)
    if own is not None:
        return own
    if _is_lost(failure):
        return _lost(failure, doing)
    return _classify(failure, doing)


def cause_of(error: HoldfastError, failure: BaseException) -> BaseException | None:
    """Return what to raise the translation of an exception `from`: that of a task has its own cause, and no pickle."""
    return failure if error_in(failure) is None else error.__cause__


def _classify(failure: BaseException, doing: str) -> HoldfastError:
    text, root = text_of(failure), root_cause(failure)
    both = f"{root}\n{text}"

    def has_any(signs: tuple[str, ...], where: str = both) -> bool:
        return any(sign in where for sign in signs)

    if has_any(_ENDING):
        return _lost(failure, doing)
    if "No module named 'holdfast'" in text:
        return ConfigurationError(
            "the Python workers of Spark cannot import holdfast: set PYSPARK_PYTHON to a Python that has it before the "
            "session starts, or ship it with spark.submit.pyFiles or spark.archives"
        )
    python = _PYTHON.search(text)
    if python is not None:
        return ConfigurationError(
            f"the Python of Spark's workers cannot be used (while {doing}): {python[0].strip()}; set PYSPARK_PYTHON, "
            "before the session starts, to a Python of the driver's version that each host has"
        )
    if isinstance(failure, ImportError) or has_any(_MISSING, root):
        return ConfigurationError(
            f"a package is missing (while {doing}): {root}; install it for the driver and for the Python of the "
            "workers (PYSPARK_PYTHON)"
        )
    if has_any(_MISMATCH):
        return RestoreError(
            message="the checkpoint has positions of other inputs than the program has (while "
            f"{doing}): {root}; give the program the inputs back, or start with --fresh"
        )
    if has_any(_ROWS_GONE):
        return InputGoneError(
            f"rows of an input were lost before the job read them (while {doing}): {root}; put them back, let the "
            "input go on without them (Kafka: the option failOnDataLoss=false), or start with --fresh"
        )
    if isinstance(failure, AnalysisException):
        # A new attempt plans the same.
        return ConfigurationError(f"Spark cannot plan the program (while {doing}): {failure}")
    if has_any(_UNREADABLE):
        return InputError(f"Spark cannot read an input (while {doing}): {root}")
    if has_any(CRASHED, text):
        return EngineError(
            f"a Python worker of Spark ended without an error (while {doing}): it was killed, for instance because its "
            "host had no memory left, or native code of the program crashed; see the log of the executor"
        )
    if is_unavailable(root, text):
        return EngineUnavailableError(f"Spark failed while {doing}: {root}")
    return EngineError(f"Spark failed while {doing}: {root}")


@contextmanager
def translate_fatal(doing: str) -> Iterator[None]:
    """Raise errors that a restart cannot repair as errors of Holdfast; other exceptions pass unchanged.

    Raises:
        EngineLostError: The JVM has ended.
        ConfigurationError: Spark cannot plan the program, or a package or a Python is missing.
        InputGoneError: Rows were lost that the job has not read.
        RestoreError: The checkpoint has positions of other inputs.
    """
    try:
        yield
    except HoldfastError:
        raise
    except Exception as failure:
        error = translate(failure, doing)
        if isinstance(error, FATAL_IN_SPARK):
            raise error from failure
        raise


def _lost(failure: BaseException, doing: str) -> EngineLostError:
    what, again = "the Spark session was stopped", "again on a new session"
    if not _is_jvm_alive():  # PySpark starts no second one in a process
        what, again = "Spark's JVM is gone", "again in a new process (in a notebook: restart the kernel)"
    return EngineLostError(
        f"{what} (while {doing}: {type(failure).__name__}); run the job {again}, it resumes from its last completed "
        "checkpoint"
    )


def _is_lost(failure: BaseException) -> bool:
    """Return whether a call failed because there is no JVM any more, or the session was stopped.

    A socket may be refused, reset or closed. After a closed one py4j raises a plain `Py4JError`, which has many other
    causes too; then a call to the JVM decides.
    """
    if isinstance(failure, Py4JNetworkError | ConnectionError | EOFError) or _is_stopped(failure):
        return True
    return isinstance(failure, Py4JError) and not isinstance(failure, Py4JJavaError) and not _is_jvm_alive()


def _is_stopped(failure: BaseException) -> bool:
    """Return whether PySpark used an attribute that a stopped session no longer has, which it does not check."""
    if not isinstance(failure, AttributeError) or failure.obj is not None:
        return False
    *_, (frame, _) = traceback.walk_tb(failure.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("pyspark.")


def _is_jvm_alive() -> bool:
    gateway = SparkContext._gateway
    try:
        return gateway is not None and gateway.jvm.java.lang.System.nanoTime() is not None
    except Exception:  # noqa: BLE001 - any error means that the JVM is gone
        return False


def root_cause(failure: BaseException) -> str:
    """Return kind and message of the root cause of an exception, in one line."""
    java = _java_of(failure)
    if java is not None:
        try:
            return innermost_cause(_deepest(java))
        except Exception:  # noqa: BLE001 - the JVM is ending, and answers no more
            return f"{type(failure).__name__}, {_NO_DETAILS}"
    if isinstance(failure, TaskFailure):
        return innermost_cause(text_of(failure))
    return f"{type(failure).__name__}: {innermost_cause(text_of(failure))}"


def text_of(failure: BaseException) -> str:
    """Return the text of an exception; for one of Java this is a call, which fails if the JVM is ending."""
    try:
        return str(failure)
    except Exception:  # noqa: BLE001 - py4j raises errors of many types then
        return NO_TEXT


def _java_of(failure: BaseException) -> Any:
    """Return the Java exception behind a Python exception; None if there is none."""
    if isinstance(failure, Py4JJavaError):
        return failure.java_exception
    origin = getattr(failure, "_origin", None)
    if origin is not None:
        return origin
    cause = getattr(failure, "_cause", None)
    return _java_of(cause) if isinstance(cause, BaseException) else None


def _deepest(java: Any) -> str:
    for _ in range(_DEEPEST):
        cause = java.getCause()
        if cause is None:
            break
        java = cause
    return str(java.toString())
