"""Descriptions of the sources of a Spark frame, to detect inputs that differ from those in a checkpoint.

A description has the format and the options that name a place. Options that only change how it is read are not part of
it, so they can be changed freely, and no secret ever is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import location_without_credentials

_STREAMING: Final = ("StreamingRelation", "StreamingRelationV2")
_PLACES: Final = (
    "path",
    "paths",
    "subscribe",
    "subscribepattern",
    "assign",
    "topic",
    "topics",
    "table",
    "dbtable",
    "database",
    "collection",
    "stream",
    "streamname",
    "queue",
    "subscription",
    "host",
    "port",
    "url",
)
_PARAMETERS: Final = re.compile(r"[?;]")


def streaming_leaves(frame: DataFrame) -> list[Any]:
    """Return the sources of a frame, one for each line of Spark's offset log; equal ones are one source."""
    return [leaf for leaf in _leaves(frame) if _class(leaf) in _STREAMING]


def source_of(leaf: Any, session: SparkSession) -> tuple[str, str]:
    """Return what a source reads, and its columns."""
    columns = str(leaf.schema().catalogString())
    if _class(leaf) == "StreamingRelation":
        source = leaf.dataSource()
        table = source.catalogTable()
        name = f"table {table.get().identifier().unquotedString()!r}" if table.isDefined() else source.className()
        return _words(name, _scala_map(source.options()), session), columns
    name, identifier = str(leaf.sourceName()), leaf.identifier()
    if identifier.isDefined():
        name = f"table {identifier.get().toString()!r}"
    return _words(name, dict(leaf.extraOptions().asCaseSensitiveMap()), session), columns


def ignores_missing_files(leaf: Any) -> bool:
    """Return whether a source is configured to skip deleted files."""
    if _class(leaf) != "StreamingRelation":
        return False
    options = _scala_map(leaf.dataSource().options())
    return any(key.lower() == "ignoremissingfiles" and value.lower() == "true" for key, value in options.items())


def table_of(frame: DataFrame, session: SparkSession) -> tuple[str, str]:
    """Return what a static frame reads, and its columns."""
    found = dict.fromkeys(_table(leaf, session) for leaf in _leaves(frame))
    return " and ".join(found), str(frame._jdf.schema().catalogString())


def description_of(frame: DataFrame) -> str:
    """Return what a frame reads, streaming or static."""
    session = frame.sparkSession
    if not frame.isStreaming:
        return table_of(frame, session)[0]
    return " and ".join(dict.fromkeys(source_of(leaf, session)[0] for leaf in streaming_leaves(frame)))


def _leaves(frame: DataFrame) -> Iterator[Any]:
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    return (leaves.apply(position) for position in range(leaves.size()))


def _class(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _table(leaf: Any, session: SparkSession) -> str:
    """Return what a leaf of a static plan reads. Rows made in memory are alike: each Spark has other nodes for them."""
    kind = _class(leaf)
    if kind == "LogicalRelation":
        if leaf.catalogTable().isDefined():
            return f"table {leaf.catalogTable().get().identifier().unquotedString()!r}"
        relation = leaf.relation()
        if _class(relation) != "HadoopFsRelation":
            return _class(relation)
        options = _scala_map(relation.options())
        if "path" not in {key.lower() for key in options}:
            options = {"paths": ",".join(sorted(str(relation.location().rootPaths().mkString(",")).split(",")))}
        return _words(str(relation.fileFormat().toString()), options, session)
    if kind == "DataSourceV2Relation":
        return f"table {leaf.table().name()!r}"
    return "rows of the program"


def _words(name: str, options: Mapping[str, str], session: SparkSession) -> str:
    places = {key.lower(): value for key, value in options.items() if key.lower() in _PLACES}
    options_text = [f"{key} {_place(key, places[key], session)!r}" for key in sorted(places)]
    return f"{name} of {', '.join(options_text)}" if options_text else str(name)


def _place(key: str, value: str, session: SparkSession) -> str:
    if key == "path":
        value = _qualified(value, session)
    elif key == "subscribe":
        value = ",".join(sorted(topic.strip() for topic in value.split(",")))
    elif key == "assign":
        value = _sorted_json(value)
    value = location_without_credentials(value)
    # After these a driver takes a user's password.
    return _PARAMETERS.split(value)[0] if key == "url" else value


def _qualified(path: str, session: SparkSession) -> str:
    """Return the path with its file system, and absolute: it means the same wherever the program starts."""
    jvm = session.sparkContext._jvm
    assert jvm is not None
    try:
        place = jvm.org.apache.hadoop.fs.Path(path)
        configuration = session._jsparkSession.sessionState().newHadoopConf()
        return str(place.getFileSystem(configuration).makeQualified(place).toString())
    except Py4JError:
        return path  # not of a file system that Hadoop knows: it means what the source makes of it


def _sorted_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


def _scala_map(options: Any) -> dict[str, str]:
    found, items = {}, options.iterator()
    while items.hasNext():
        item = items.next()
        found[str(item._1())] = str(item._2())
    return found


def records_behind(source: Mapping[str, Any]) -> int | None:
    """Return how many records the place has that no batch has read yet; None if it does not count them.

    Args:
        source: The source in Spark's progress: the end of the batch, and the end of the place.
    """
    try:
        end, latest = _counts(source["endOffset"]), _counts(source["latestOffset"])
    except PARSE_ERRORS:
        return None
    if not latest or end is None:
        return None
    return sum(max(0, number - end.get(place, 0)) for place, number in latest.items())


def _counts(offset: Any) -> dict[tuple[str, str], int] | None:
    """Return numbers by topic and partition: of Spark's own Kafka source, or of Holdfast's."""
    if isinstance(offset, str):
        offset = json.loads(offset)
    if not isinstance(offset, dict):
        return None
    found = {}
    for topic, said in offset.items():
        partitions = said.get("next", said)
        for partition, number in partitions.items():
            found[topic, partition] = int(number)
    return found
