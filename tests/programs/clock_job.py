"""A job that copies numbers from files to files until its standard input ends.

`clock_job.py INPUT OUTPUT CHECKPOINTS TRIGGER OFFSET [LIBRARY]`: OFFSET is a file with the seconds by which its clock
is ahead. With LIBRARY, that of libfaketime, the clock of its JVM is ahead as well. At its end it writes into
`told.json` which failure it has reported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSource
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from holdfast.kernel.clock import SystemClock


def main(rows: str, output: str, checkpoints: str, trigger: str, offset: str, library: str = "") -> None:
    """Run the job."""
    own: dict[str, str] = {}
    if library:
        os.environ |= {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": offset,
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # for old releases of glibc
            "NO_FAKE_STAT": "1",
        }
        own = {"spark.executorEnv.LD_PRELOAD": ""}  # Python's sleep fails with it

    def now_ms(self: SystemClock) -> int:
        return time.time_ns() // 1_000_000 + 1000 * int(Path(offset).read_text("utf-8") or 0)

    SystemClock.now_ms = now_ms  # type: ignore[method-assign]
    env = StreamExecutionEnvironment.get_execution_environment(
        {
            "execution.checkpointing.dir": checkpoints,
            "execution.trigger": trigger,
            "parallelism.default": 1,
            "restart-strategy.type": "none",
            "spark.master": "local[2]",
            "spark.ui.enabled": False,
            **own,
        }
    )
    source = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat("n bigint"), rows)
    read = source.monitor_continuously(Duration.of_millis(100)).build()
    numbers = env.from_source(read, WatermarkStrategy.no_watermarks(), "numbers").uid("in")
    numbers.key_by("n").map(lambda row: row, "n bigint").uid("same").sink_to(ParquetFileSink(output)).uid("out")
    client = env.execute_async("clock")
    sys.stdin.read()
    failure = client._master.history.last_failure
    client.stop()
    client.await_termination(60)
    Path(checkpoints, "told.json").write_text(json.dumps({"last_failure": failure and failure.message}), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
