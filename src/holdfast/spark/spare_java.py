"""A JVM that is kept for the next session of this process: started, warmed up, and given away once.

If the next session asks for nothing that counts only at the start of a Spark context, it gets the context as well, and
with it Python workers that have imported what they need. A context is kept only where its executors are in the JVM:
elsewhere it would hold what others could use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger
from holdfast.spark.java import ensure_java
from holdfast.spark.session import get_or_create

_log = get_logger(__name__)

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
_NAME: Final = "spark.app.name"
_WAREHOUSE: Final = "spark.sql.warehouse.dir"
_Context: Any = SparkContext
"""Whose way to begin is another one for a while."""


class SpareJava:
    """The JVM of this process, which has no session that anybody has asked for. Blocks while it starts."""

    def __init__(self) -> None:
        ensure_java()
        # Without the settings of a session: as system properties they would hold for the next one, too.
        SparkContext._ensure_initialized()
        self._settings: dict[str, str] = {}

    def start_session(self, options: Mapping[str, str]) -> SparkSession:
        """Return a session as a job will have it that has these options and no others. Blocks.

        If such a job will not get this JVM, or not its context, they do not matter.
        """
        settings = {key: text for key, text in options.items() if key.startswith("spark.")}
        is_for_it = _needs_its_own(settings) is None and settings.get("spark.master", "local").startswith("local")
        begin = _Context._initialize_context

        def noting(context: SparkContext, conf: Any) -> Any:
            self._settings = _settings_of(conf)
            return begin(context, conf)

        _Context._initialize_context = noting
        try:
            session = get_or_create(Configuration(settings if is_for_it else {}))
        finally:
            _Context._initialize_context = begin
        session.catalog.databaseExists("default")  # its directory is made, and moves with the others
        return session

    @property
    def is_for_this_process_alone(self) -> bool:
        """Whether a context may be kept: it holds nothing elsewhere, and writes no log of what it does."""
        is_local = self._settings.get("spark.master", "").startswith("local")
        return is_local and self._settings.get("spark.eventLog.enabled", "false") != "true"

    def give_away(self) -> None:
        """Let the next session of this process have it, if it may have any of it."""
        context = SparkContext._active_spark_context
        gateway = SparkContext._gateway
        assert context is not None and gateway is not None
        kept: Any = None
        if self.is_for_this_process_alone:
            kept, context._jsc = context._jsc, None
            SparkContext._active_spark_context = None
            SparkSession._instantiatedSession = None
            SparkSession._activeSession = None
        else:
            context.stop()
        SparkContext._gateway = SparkContext._jvm = None
        give_java(gateway)
        _give_context(kept, gateway, self._settings)


def give_java(gateway: Any) -> None:
    """Let the next session of this process have a JVM.

    If its settings count only at the start of a JVM, it gets one of its own, and this one ends.
    """
    module: Any = sys.modules[SparkContext.__module__]
    launch = module.launch_gateway

    def launch_gateway(conf: SparkConf | None = None, popen_kwargs: Any = None) -> Any:
        module.launch_gateway = launch
        reason = _needs_its_own(dict(conf.getAll()) if conf is not None else {})
        if reason is None and popen_kwargs is None:
            _enter_this_directory(gateway)
            return gateway
        _log.info("the JVM that was kept ready is not used, because of %s", reason)
        gateway.shutdown()
        if gateway.proc is not None:
            gateway.proc.stdin.close()  # which ends it
        return launch(conf, popen_kwargs)

    module.launch_gateway = launch_gateway


def _give_context(kept: Any, gateway: Any, settings: Mapping[str, str]) -> None:
    """A session with other settings than those of the context gets one of its own in the same JVM, or in another."""
    begin, jvm = _Context._initialize_context, gateway.jvm

    def initialize(context: SparkContext, conf: Any) -> Any:
        _Context._initialize_context = begin
        if context._gateway is not gateway:
            return begin(context, conf)
        wanted = _settings_of(conf)
        # Spark has looked once where it was, and remembers it.
        warehouse = f"{Path.cwd().as_uri()}/spark-warehouse"
        if kept is not None:
            reason = _differs(jvm, settings, wanted)
            if reason is None:
                kept.sc().conf().set(_NAME, wanted[_NAME])
                _default_session(jvm).sql(f"alter database default set location '{warehouse}'")
                return kept
            _log.info("the Spark context that was kept ready is not used, because of %s", reason)
            kept.stop()
        conf.setIfMissing(_WAREHOUSE, warehouse)
        return begin(context, conf)

    _Context._initialize_context = initialize


def _differs(jvm: Any, settings: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """A setting that a context has from its beginning on, and that is another one in the two."""
    session = _default_session(jvm)
    for key in sorted((settings.keys() | wanted.keys()) - {_NAME}):
        if settings.get(key) == wanted.get(key):
            continue
        if key not in wanted or not session.conf().isModifiable(key):
            return key
    return None


def _default_session(jvm: Any) -> Any:
    return jvm.org.apache.spark.sql.SparkSession.getDefaultSession().get()


def _settings_of(conf: Any) -> dict[str, str]:
    return {pair._1(): pair._2() for pair in conf.getAll()}


def _needs_its_own(settings: Mapping[str, str]) -> str | None:
    if "PYSPARK_SUBMIT_ARGS" in os.environ:
        return "PYSPARK_SUBMIT_ARGS"
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
