"""Settings of Spark that whoever runs a cluster may have made: output and state are the same under each of them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.stories.process import ROOT

pytestmark = pytest.mark.soak

JOB = ROOT / "tests" / "programs" / "settings_job.py"
SCHEMA = pa.schema(
    [
        ("Key", pa.string()),
        ("value", pa.float64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("amount", pa.decimal128(12, 2)),
        ("tags", pa.list_(pa.string())),
        ("group", pa.int64()),
    ]
)
BEGIN = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
"""Half an hour before Europe's clocks go forward."""
FILES, ROWS = 3, 300

SETTINGS = [
    "spark.serializer=org.apache.spark.serializer.KryoSerializer spark.kryo.registrationRequired=true",
    "spark.scheduler.mode=FAIR",
    "spark.sql.session.timeZone=Asia/Kathmandu",
    "spark.sql.session.timeZone=America/St_Johns spark.sql.execution.arrow.maxRecordsPerBatch=0",
    "spark.sql.caseSensitive=true",
    "spark.sql.ansi.enabled=false",
    "spark.sql.execution.arrow.maxRecordsPerBatch=7",
    "spark.python.worker.reuse=false",
    "spark.python.use.daemon=false",
    "spark.authenticate=true spark.authenticate.secret=x spark.network.crypto.enabled=true",
    "spark.io.encryption.enabled=true spark.authenticate=true spark.authenticate.secret=x",
    "spark.sql.codegen.wholeStage=false spark.sql.codegen.factoryMode=NO_CODEGEN",
    "spark.task.cpus=2",
    "spark.sql.streaming.checkpointLocation=OUTPUT/global",
    "spark.sql.timestampType=TIMESTAMP_NTZ",
    "spark.sql.shuffle.partitions=1 spark.default.parallelism=1",
    "spark.sql.shuffle.partitions=13 spark.sql.adaptive.enabled=true spark.sql.adaptive.forceApply=true",
    "spark.sql.execution.pythonUDF.arrow.enabled=true spark.sql.execution.pyspark.udf.idleTimeoutSeconds=60",
    "spark.eventLog.enabled=true spark.eventLog.dir=OUTPUT spark.ui.enabled=true",
    "spark.sql.streaming.noDataMicroBatches.enabled=false spark.sql.streaming.minBatchesToRetain=1",
    "spark.rdd.compress=true spark.shuffle.compress=false spark.io.compression.codec=zstd",
    "spark.sql.datetime.java8API.enabled=true spark.sql.legacy.timeParserPolicy=LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite=LEGACY spark.sql.parquet.datetimeRebaseModeInRead=LEGACY",
    "spark.sql.execution.arrow.pyspark.selfDestruct.enabled=true spark.sql.execution.arrow.useLargeVarTypes=true",
    "spark.memory.offHeap.enabled=true spark.memory.offHeap.size=200m spark.executor.pyspark.memory=700m",
    "spark.sql.optimizer.excludedRules=org.apache.spark.sql.catalyst.optimizer.ColumnPruning",
    "spark.sql.constraintPropagation.enabled=false",
    "spark.sql.exchange.reuse=false spark.sql.maxPlanStringLength=10",
    "spark.python.profile=true",
    "spark.python.unix.domain.socket.enabled=true",
    "spark.driver.maxResultSize=1m",
]
"""Each a case; OUTPUT is a directory of the case."""


def add_files(directory: Path, first: int) -> None:
    """Make some files of the input, the same ones each time."""
    directory.mkdir(exist_ok=True)
    for number in range(first, first + FILES):
        chance = random.Random(number)
        rows = [
            {
                "Key": f"key {chance.randrange(40)} é",
                "value": chance.random(),
                "ts": BEGIN + timedelta(seconds=number * ROWS + second),
                "day": date(1901, 1, 1) + timedelta(days=chance.randrange(60_000)),
                "amount": Decimal(chance.randrange(10**9)).scaleb(-2),
                "tags": [chance.choice("abc")] * chance.randrange(3),
                "group": chance.randrange(7),
            }
            for second in range(ROWS)
        ]
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), directory / f"{number:03}.parquet")


def output_under(directory: Path, settings: str) -> tuple[list[str], list[str]]:
    """What the job writes into files, and what its function is called with, in two runs with files between them."""
    output = directory / "out"
    output.mkdir()
    given = [part for setting in settings.replace("OUTPUT", str(output)).split() for part in ("-D", setting)]
    command = [Path(sys.executable).with_name("holdfast"), "run", "-D", "restart-strategy.type=none", *given, JOB, "--"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    for first in (0, FILES):
        add_files(directory / "in", first)
        places = [directory / "in", output, directory / "checkpoints"]
        ended = subprocess.run(
            [*command, *places], capture_output=True, text=True, timeout=400, env=environment, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    files = pq.read_table(output / "files").to_pylist()
    told = [row for file in output.glob("*-*.json") for row in json.loads(file.read_text(encoding="utf-8"))]
    return sorted(map(str, files)), sorted(json.dumps(row, sort_keys=True) for row in told)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    files, told = output_under(tmp_path_factory.mktemp("plain"), "")
    assert len(files) == len(told) > 2 * FILES * ROWS, "each row, and timers"
    return files, told


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_job_does_the_same_under_settings_of_the_cluster(
    settings: str, expected: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    files, told = output_under(tmp_path, settings)
    assert files == expected[0]
    if "timeZone" not in settings:  # instants of a frame are told in the time zone of the session
        assert told == expected[1]
