"""`transform_with_state` on real Spark: what users write, with frames in."""

import pytest

pytest.importorskip("pyspark.sql.streaming.stateful_processor", reason="StatefulProcessor came with Spark 4.0")

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

import holdfast.spark
from holdfast.datastream import ParquetFileSink, StreamExecutionEnvironment
from holdfast.errors import ConfigurationError
from tests.documentation import ROOT, blocks
from tests.spark.processors.programs import INPUT, PROGRAMS, Processor, RunningCount, SessionsByTimer, Started, at

pytestmark = [pytest.mark.spark]


def written(spark, directory, batches):
    for number, batch in enumerate(batches):
        rows = [(key, at(second), value) for key, second, value in batch]
        spark.createDataFrame(rows, INPUT).coalesce(1).write.mode("append").parquet(f"{directory}/{number}")


def environment(spark, tmp_path):
    options = {
        "execution.trigger": "available-now",
        "execution.checkpointing.dir": f"{tmp_path}/checkpoints",
        "restart-strategy.type": "none",
    }
    return StreamExecutionEnvironment.get_execution_environment(options, spark=spark)


def test_the_program_of_the_page_on_processors_runs(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [block] = blocks(ROOT / "docs" / "from-transform-with-state.md", "python spark")
    exec(compile(block.padded, str(block.page), "exec"), {"__name__": "__main__"})


def test_a_processor_starts_from_initial_state_and_resumes_from_its_checkpoint(spark, tmp_path):
    def run():
        env = environment(spark, tmp_path)
        rows = spark.readStream.schema(INPUT).parquet(f"{tmp_path}/in/*")
        states = spark.createDataFrame([("a", 100), ("d", 1), ("a", 20)], "name string, value bigint")
        schema = StructType([StructField("key", StringType()), StructField("total", LongType())])
        totals = holdfast.spark.transform_with_state(
            rows.groupBy("key"), Started(), schema, "Update", "None", states.groupBy("name"), env=env
        )
        totals.uid("totals").sink_to(ParquetFileSink(f"{tmp_path}/out")).uid("out")
        others = holdfast.spark.transform_with_state(
            rows.groupBy("key"), Started(), schema, "Update", "None",
            spark.createDataFrame([("c", 1000)], "name string, value bigint").groupBy("name"),
            env=env, input_uid="again", initial_state_uid="others",
        )  # fmt: skip
        others.uid("of-others").sink_to(ParquetFileSink(f"{tmp_path}/of-others")).uid("out-of-others")
        env.execute("totals")
        return sorted(map(tuple, spark.read.parquet(f"{tmp_path}/out").collect()))

    written(spark, f"{tmp_path}/in", PROGRAMS["initial state"].batches[:1])
    assert run() == [("a", 123), ("b", 5)]
    written(spark, f"{tmp_path}/in/later", PROGRAMS["initial state"].batches[1:2])
    (tmp_path / "in" / "later" / "0").rename(tmp_path / "in" / "1")
    assert run() == [("a", 123), ("a", 126), ("b", 5), ("c", 22)]
    of_others = sorted(map(tuple, spark.read.parquet(f"{tmp_path}/of-others").collect()))
    assert of_others == [("a", 3), ("a", 6), ("b", 5), ("c", 1022)]


def test_sessions_close_by_the_watermark_of_the_frame(spark, tmp_path):
    env = environment(spark, tmp_path)
    written(spark, f"{tmp_path}/in", [[("a", 0, 1), ("A", 8, 2), ("b", 3, 3), ("c", 100, 4)]])
    rows = spark.readStream.schema(INPUT).parquet(f"{tmp_path}/in/*").withWatermark("at", "5 seconds")
    sessions = holdfast.spark.transform_with_state(
        rows.groupBy(F.upper("key").alias("letter")),
        SessionsByTimer(),
        "key string, n bigint, ends bigint",
        "Append",
        "EventTime",
        env=env,
    )
    assert sorted(map(tuple, sessions.execute_and_collect())) == [("A", 2, 18), ("B", 1, 13)]


class KeysAndRows(Processor):
    def handleInputRows(self, key, rows, timerValues):
        yield Row(key=str(key), rows=str(sorted(tuple(row)[:1] for row in rows)))


@pytest.mark.parametrize(
    ("by", "told"),
    [
        (lambda: ["KEY"], [("('A',)", "[('A',)]"), ("('a',)", "[('a',)]")]),
        (lambda: [F.upper("key").alias("key")], [("('A',)", "[('A',), ('a',)]")]),
        (lambda: [F.upper("key").alias("a.key")], [("('A',)", "[('A',), ('a',)]")]),
        (lambda: [F.lit("x"), F.col("key")], [("('x', 'A')", "[('A',)]"), ("('x', 'a')", "[('a',)]")]),
    ],
)
def test_rows_are_grouped_by_the_given_columns_and_stay_unchanged(spark, tmp_path, by, told):
    env = environment(spark, tmp_path)
    frame = spark.createDataFrame([("a", at(0), 1), ("A", at(1), 2)], INPUT)
    run = holdfast.spark.transform_with_state
    grouped = run(frame.groupBy(*by()), KeysAndRows(), "key string, rows string", "Update", "None", env=env)
    assert sorted(map(tuple, grouped.execute_and_collect())) == told


def test_invalid_arguments_are_rejected_when_the_program_is_defined(spark):
    frame = spark.createDataFrame([("a", at(0), 1)], INPUT)
    run = holdfast.spark.transform_with_state
    with pytest.raises(ConfigurationError, match=r"takes df.groupBy\(...\)"):
        run(frame, RunningCount(), "key string, n bigint", "Update", "None")
    with pytest.raises(ConfigurationError, match=r"make a column of it with withColumn\(\)"):
        lower = F.udf(lambda key: key.lower(), "string")
        run(frame.groupBy(lower("key")), RunningCount(), "key string, n bigint", "Update", "None")
    with pytest.raises(ConfigurationError, match="at least one column"):
        run(frame.groupBy(), RunningCount(), "key string, n bigint", "Update", "None")
    with pytest.raises(ConfigurationError, match="withWatermark"):
        run(frame.groupBy("key"), RunningCount(), "key string, n bigint", "Update", "EventTime")
    with pytest.raises(ConfigurationError, match="'Append' or 'Update', not 'Complete'"):
        run(frame.groupBy("key"), RunningCount(), "key string, n bigint", "Complete", "None")
    with pytest.raises(ConfigurationError, match="an instance of StatefulProcessor"):
        run(frame.groupBy("key"), RunningCount, "key string, n bigint", "Update", "None")
    states = spark.createDataFrame([("a", 1)], "key string, value bigint")
    with pytest.raises(ConfigurationError, match="initialState is grouped by"):
        run(frame.groupBy("key"), Started(), "key string, n bigint", "Update", "None", states.groupBy("key", "value"))
