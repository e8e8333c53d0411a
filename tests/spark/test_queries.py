"""The live state of one pipeline as a DataFrame of another: `spark.read.format("holdfast")`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest

from holdfast.datastream import StreamExecutionEnvironment
from holdfast.queryable import QueryableStateClient, ServerSettings, StateServer, at_least
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tests.documentation import ROOT, blocks
from tests.programs.queried_job import ACCOUNTS, NAME, balance_after, job_master
from tests.programs.written_job import WrittenJob
from tests.unit.queryable.live_job import until

SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.skipif(SPARK < (4, 0), reason="Spark has data sources in Python since 4.0"),
]


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[str]:
    """Another pipeline that runs all the while, with its query server; the address of that."""
    options = {"queryable-state.enable": "true", "queryable-state.proxy.ports": "0"}
    master = job_master(str(tmp_path / "live"), 10_000, 0.02, options)
    with ExitStack() as stack:
        thread = threading.Thread(target=master.run)
        thread.start()
        stack.callback(thread.join)
        stack.callback(master.control.stop)
        # Any port would do for the server in the job's process; one beside it says which port it has.
        server = stack.enter_context(StateServer(ServerSettings(poll=0.01)))
        server.serve_job(master.job.directory, master.job.register)
        address = server.get_server_address()
        with QueryableStateClient(*address) as client:
            until(lambda: client.jobs() != [])
        yield "{}:{}".format(*address)


def live(spark: Any, address: str, state: str, **options: Any) -> Any:
    reader = spark.read.format("holdfast").option("address", address).option("job", NAME).option("state", state)
    return reader.options(**options).load()


def test_a_join_with_the_live_state_of_another_pipeline_is_of_one_checkpoint(spark: Any, pipeline: str) -> None:
    asked = spark.createDataFrame(
        [(account, i) for i, account in enumerate([*ACCOUNTS, "nobody"])], "key string, i int"
    )
    epochs_seen = []
    with QueryableStateClient(*_address(pipeline)) as client:
        for _ in range(2):
            rows = (
                asked.join(live(spark, pipeline, "balances", partitions=2), "key")
                .select("key", "i", "value.*")
                .collect()
            )
            [epochs] = {row.epochs for row in rows}
            assert sorted((row.i, row.key, row.balance) for row in rows) == [
                (i, account, balance_after(account, epochs)) for i, account in enumerate(ACCOUNTS)
            ]
            epochs_seen.append(epochs)
            newest = client.jobs()[0]["checkpoint_id"]
            client.get_kv_state(NAME, "balances", ACCOUNTS[0], consistency=at_least(newest + 2))
    assert epochs_seen[0] < epochs_seen[1]


def test_a_stream_is_joined_with_the_live_state_of_another_pipeline(spark: Any, pipeline: str, tmp_path: Path) -> None:
    """Each epoch of the stream sees the state of a checkpoint, whole, and a later epoch no older one."""
    orders = tmp_path / "orders"
    for number in range(3):
        frame = spark.createDataFrame([(number, account) for account in ACCOUNTS], "number int, key string")
        frame.coalesce(1).write.mode("append").parquet(str(orders))
    env = StreamExecutionEnvironment.get_execution_environment(
        {"execution.checkpointing.dir": str(tmp_path / "checkpoints"), "execution.trigger": "available-now"},
        spark=spark,
    )
    stream = env.spark.readStream.schema("number int, key string").option("maxFilesPerTrigger", 1).parquet(str(orders))
    joined = env.from_dataframe(stream).transform(
        lambda df: df.join(live(spark, pipeline, "balances", partitions=2).hint("broadcast"), "key").selectExpr(
            "number", "key", "value.*"
        )
    )
    with joined.execute_and_collect("orders") as rows:
        found = list(rows)
    assert sorted((row.number, row.key) for row in found) == [(n, key) for n in range(3) for key in sorted(ACCOUNTS)]
    for row in found:
        assert row.balance == balance_after(row.key, row.epochs)
    assert all(len({row.epochs for row in found if row.number == number}) == 1 for number in range(3))


def test_every_column_of_a_state_and_filters_and_one_checkpoint(spark: Any, tmp_path: Path) -> None:
    kinds = {
        "total": ValueStateDescriptor("total", "struct<n: bigint, note: string>"),
        "steps": ListStateDescriptor("steps", "bigint"),
        "by-day": MapStateDescriptor("by_day", "date", "double"),
    }
    for name, descriptor in kinds.items():
        descriptor.set_queryable(name)
    job = WrittenJob(tmp_path, list(kinds.values()), "struct<origin: string, n: int>", name=NAME)

    def write(n: int) -> Any:
        import datetime

        def of(states: Any) -> None:
            states.total.update((n, f"note {n}"))
            states.steps.update([n, n + 1])
            states.by_day.put(datetime.date(2013, 1, n), n / 2)

        return of

    job.checkpoint([(("EWR", n), write(n)) for n in range(1, 21)])
    with StateServer(ServerSettings()) as server:
        server.serve_job(job.directory, job.register)
        address = "{}:{}".format(*server.get_server_address())
        total = live(spark, address, "total", partitions=3)
        assert (
            total.schema.simpleString() == "struct<key:struct<origin:string,n:int>,value:struct<n:bigint,note:string>>"
        )
        assert total.rdd.getNumPartitions() == 3
        assert {(row.key.n, row.value.n, row.value.note) for row in total.collect()} == {
            (n, n, f"note {n}") for n in range(1, 21)
        }
        few = "value.n > 17 and value.note <> 'note 19'"
        assert sorted(row.value.n for row in total.where(few).collect()) == [18, 20]
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            pushed = live(spark, address, "total", pushdown="true").where(few)
            assert sorted(row.value.n for row in pushed.collect()) == [18, 20]
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        assert [row.value for row in live(spark, address, "steps").where("key.n = 7").collect()] == [[7, 8]]
        days = live(spark, address, "by-day").where("map_key = date'2013-01-03'").select("key.n", "value").collect()
        assert [tuple(row) for row in days] == [(3, 1.5)]
        job.checkpoint([(("EWR", 1), write(20))])
        with QueryableStateClient(*server.get_server_address()) as client:
            client.get_kv_state(NAME, "total", ("EWR", 1), consistency=at_least(2))
        first = live(spark, address, "total", checkpoint=1).where("key.n = 1").collect()
        newest = live(spark, address, "total").where("key.n = 1").collect()
        assert [first[0].value.n, newest[0].value.n] == [1, 20]


def test_the_program_of_the_page_on_queries_runs(spark: Any, tmp_path: Path) -> None:
    descriptor = ValueStateDescriptor[int]("total", "bigint")
    descriptor.set_queryable("totals")
    job = WrittenJob(tmp_path, [descriptor], name="turnover")
    job.checkpoint([("ada", lambda states: states.total.update(150)), ("bob", lambda states: states.total.update(1))])
    with StateServer(ServerSettings()) as server:
        server.serve_job(job.directory, job.register)
        [block] = blocks(ROOT / "docs" / "queries.md", "python query spark")
        assert "127.0.0.1:9069" in block.text
        text = block.padded.replace("127.0.0.1:9069", "{}:{}".format(*server.get_server_address()))
        exec(compile(text, str(block.page), "exec"), {})


def test_invalid_queries_are_reported(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"missing: \['address', 'state'\]"):
        spark.read.format("holdfast").option("job", NAME).load()
    with pytest.raises(PySparkException, match=r"No connection to 127\.0\.0\.1:1"):
        live(spark, "127.0.0.1:1", "total")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
