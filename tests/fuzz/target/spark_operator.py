"""What Spark says of an operator of a stopped query: a text of JSON that stands in the query's own files."""

from typing import Any, NamedTuple

from holdfast.spark.stopped_query import QueryLogs, QueryStates
from tests.fuzz.target import spark_log

PATH = spark_log.PATH
FOLDER: Any = spark_log.Folder({})
NOBODY: Any = None
STATES = QueryStates(NOBODY, QueryLogs(FOLDER, "0d1e", 3, (), None, 0, 0))


class Row(NamedTuple):
    """A row of Spark's table of operators."""

    operatorProperties: str
    operatorId: int = 0
    operatorName: str = "transformWithStateInPandasExec"
    numPartitions: int = 2


def parse(data: bytes) -> None:
    operator = STATES._operator(Row(data.decode("utf-8", "replace")))
    for state in operator.states:
        assert operator.state(state.name).kind in ("value", "list", "map", "timers")
