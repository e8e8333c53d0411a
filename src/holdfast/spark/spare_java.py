"""A warm JVM that is kept for the next session of this process, and given away once.

If the next session needs nothing that counts only at the start of a Spark context, it gets the context too, and with it
Python workers that have imported what they need. A context is kept only where its executors are in the JVM: elsewhere
it would hold resources of others.
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

logger = get_logger(__name__)

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
"""Settings that count only at the start of a JVM."""
_MASTERS: Final = ("local", "spark://")
"""For other masters Spark prepares more than a session when it starts a JVM."""
_NAME: Final = "spark.app.name"
_WAREHOUSE: Final = "spark.sql.warehouse.dir"
_Context: Any = SparkContext
"""Its `_initialize_context` is replaced for a while."""


class SpareJava:
    """The JVM of this process, before anybody asks for a session. Blocks while it starts."""

    def __init__(self) -> None:
        ensure_java()
        # Without the settings of a session: as system properties they would hold for the next one, too.
        SparkContext._ensure_initialized()
        self._settings: dict[str, str] = {}

    def start_session(self, options: Mapping[str, str]) -> SparkSession:
        """Return a session as a job with exactly these options would have it. Blocks.

        Where such a job will not get this JVM, or not its context, the options do not matter.
        """
        settings = {key: text for key, text in options.items() if key.startswith("spark.")}
        is_for_it = _setting_of_new_jvm(settings) is None and settings.get("spark.master", "local").startswith("local")
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
        """Whether a context may be kept: its executors are local, and it writes no event log."""
        is_local = self._settings.get("spark.master", "").startswith("local")
        return is_local and self._settings.get("spark.eventLog.enabled", "false") != "true"

    def give_away(self) -> None:
        """Give the next session of this process as much of it as fits."""
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
    """Give the JVM to the next session of this process.

    If its settings count only at the start of a JVM, it gets its own, and this one ends.
    """
    module: Any = sys.modules[SparkContext.__module__]
    launch = module.launch_gateway

    def launch_gateway(conf: SparkConf | None = None, popen_kwargs: Any = None) -> Any:
        module.launch_gateway = launch
        reason = _setting_of_new_jvm(dict(conf.getAll()) if conf is not None else {})
        if reason is None and popen_kwargs is None:
            _enter_this_directory(gateway)
            return gateway
        logger.info("the JVM that was kept ready is not used, because of %s", reason)
        gateway.shutdown()
        if gateway.proc is not None:
            gateway.proc.stdin.close()  # which ends it
        return launch(conf, popen_kwargs)

    module.launch_gateway = launch_gateway


def _give_context(kept: Any, gateway: Any, settings: Mapping[str, str]) -> None:
    """Give the context to a session with the same settings; another one gets its own, in this JVM or another."""
    begin, jvm = _Context._initialize_context, gateway.jvm

    def initialize(context: SparkContext, conf: Any) -> Any:
        _Context._initialize_context = begin
        if context._gateway is not gateway:
            return begin(context, conf)
        wanted = _settings_of(conf)
        # Spark has looked once where it was, and remembers it.
        warehouse = f"{Path.cwd().as_uri()}/spark-warehouse"
        if kept is not None:
            reason = _differing_setting(jvm, settings, wanted)
            if reason is None:
                kept.sc().conf().set(_NAME, wanted[_NAME])
                _default_session(jvm).sql(f"alter database default set location '{warehouse}'")
                return kept
            logger.info("the Spark context that was kept ready is not used, because of %s", reason)
            kept.stop()
        conf.setIfMissing(_WAREHOUSE, warehouse)
        return begin(context, conf)

    _Context._initialize_context = initialize


def _differing_setting(jvm: Any, settings: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """Return a setting that a context has from its start, and that differs; None if there is none."""
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


def _setting_of_new_jvm(settings: Mapping[str, str]) -> str | None:
    if "PYSPARK_SUBMIT_ARGS" in os.environ:
        return "PYSPARK_SUBMIT_ARGS"
    for key in sorted(settings):
        if key.startswith(_AT_THE_START):
            return key
    master = settings.get("spark.master", "local")
    return None if master.startswith(_MASTERS) else f"spark.master={master}"


def _enter_this_directory(gateway: Any) -> None:
    """Make relative paths mean the same as in this process; file systems remember another directory."""
    jvm = gateway.jvm
    jvm.java.lang.System.setProperty("user.dir", str(Path.cwd()))
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()
