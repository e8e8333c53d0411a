"""Rows land on the partition that their subtask names, also on a Spark that places rows by hash alone."""

import pytest

from holdfast.spark.exchange import hashed_to, place

pytestmark = pytest.mark.spark


class BeforeRepartitionById:
    """A frame as Spark 4.0 and 3.5 have them."""

    def __init__(self, frame):
        self._frame = frame

    def repartition(self, *arguments):
        return self._frame.repartition(*arguments)


@pytest.fixture(scope="module")
def session(spark):
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


@pytest.mark.parametrize("tasks", [1, 2, 7, 40])
@pytest.mark.parametrize("wrap", [lambda frame: frame, BeforeRepartitionById])
def test_each_subtask_is_its_own_partition_and_all_of_them_run(session, tasks, wrap):
    rows = session.range(0, 5 * tasks).selectExpr(f"cast(pmod(id * 31, {tasks}) as int) as subtask")
    placed = place(wrap(rows), tasks, "subtask")
    assert placed.rdd.getNumPartitions() == tasks
    found = placed.selectExpr("subtask", "spark_partition_id() as partition").collect()
    assert sorted({(row.subtask, row.partition) for row in found}) == [(i, i) for i in range(tasks)]


def test_a_subtask_without_rows_has_an_empty_partition_of_its_own(session):
    rows = session.range(0, 10).selectExpr("cast(id % 2 * 4 as int) as subtask")
    found = place(BeforeRepartitionById(rows), 6, "subtask").selectExpr("spark_partition_id() as partition").collect()
    assert {row.partition for row in found} == {0, 4}


def test_every_partition_up_to_the_largest_parallelism_has_a_value(session):
    for tasks in (1, 3, 128, 32768):
        values = hashed_to(tasks)
        assert len(set(values)) == tasks
    # Spark's own hash is the judge.
    values = hashed_to(3000)
    numbers = session.createDataFrame([(value,) for value in values], "value int")
    assert [row[0] for row in numbers.selectExpr("pmod(hash(value), 3000)").collect()] == list(range(3000))
