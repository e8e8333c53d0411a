"""The Spark session of a program that a test starts, and may kill."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_of(
    master: str = "local[2]", settings: Mapping[str, str] | None = None, *, is_real_time: bool = False
) -> SparkSession:
    """Starts one; the settings win over those that all of them have, or that all for real-time jobs have."""
    from pyspark.sql import SparkSession

    from holdfast.spark.java import ensure_java
    from holdfast.spark.session import REAL_TIME_DEFAULTS

    ensure_java()  # the session is made here, and the machine may have no Java but that of the environment
    chosen = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        **(REAL_TIME_DEFAULTS if is_real_time else {}),
        **(settings or {}),
    }
    builder = SparkSession.builder.master(master)
    for key, text in chosen.items():
        builder = builder.config(key, text)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
