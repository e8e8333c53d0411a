"""A JVM that is kept for the next session of this process: started, warmed up, and given away once."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext

from holdfast.spark.java import ensure_java

_log = logging.getLogger(__name__)

_AT_THE_START: Final = (
    "spark.archives",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extra",
    "spark.driver.memory",
    "spark.files",
    "spark.jars",
    "spark.kubernetes.",
    "spark.submit.",
    "spark.yarn.",
)
"""What a JVM, or who starts it, looks at once."""
_MASTERS: Final = ("local", "spark://")
"""For the others Spark prepares more than a session when it starts a JVM."""


def start_java() -> None:
    """Start a JVM without any settings of a session: as system properties they would hold for the next one, too."""
    ensure_java()
    SparkContext._ensure_initialized()


def keep_java() -> None:
    """Take the JVM of a session that was stopped; the next session of this process gets it, if it may have any.

    A session whose settings count only at the start of a JVM gets one of its own, and this one ends.
    """
    gateway = SparkContext._gateway
    assert gateway is not None, "there was a session"
    SparkContext._gateway = SparkContext._jvm = None
    module: Any = sys.modules[SparkContext.__module__]
    launch = module.launch_gateway

    def launch_gateway(conf: SparkConf | None = None, popen_kwargs: Any = None) -> Any:
        module.launch_gateway = launch
        reason = _needs_its_own(conf)
        if reason is None and popen_kwargs is None:
            _enter_this_directory(gateway)
            return gateway
        _log.info("the JVM that was kept ready is not used, because of %s", reason)
        gateway.shutdown()
        if gateway.proc is not None:
            gateway.proc.stdin.close()  # which ends it
        return launch(conf, popen_kwargs)

    module.launch_gateway = launch_gateway


def _needs_its_own(conf: SparkConf | None) -> str | None:
    if "PYSPARK_SUBMIT_ARGS" in os.environ:
        return "PYSPARK_SUBMIT_ARGS"
    settings = dict(conf.getAll()) if conf is not None else {}
    for key in sorted(settings):
        if key.startswith(_AT_THE_START):
            return key
    master = settings.get("spark.master", "local")
    return None if master.startswith(_MASTERS) else f"spark.master={master}"


def _enter_this_directory(gateway: Any) -> None:
    """Relative paths mean what they mean to this process; file systems have remembered another directory."""
    jvm = gateway.jvm
    jvm.java.lang.System.setProperty("user.dir", str(Path.cwd()))
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()
