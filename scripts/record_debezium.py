"""Records what Debezium tells of a real Postgres, through Kafka Connect and a real broker, for tests/golden.

    .venv/bin/python scripts/record_debezium.py [--to tests/golden/debezium.jsonl.gz]

Kafka Connect and the connector are brought from Maven Central (38 MB) beside the broker of the tests; Postgres is that
of the machine. Two tables with the same history, `people` with REPLICA IDENTITY FULL and `things` with DEFAULT, are
told by three connectors: `plain`, whose messages are changes, `texts`, which writes decimals and times as texts, and
`wrapped`, whose messages have their schema around them and the transaction within. Each line of the recording is a
record of Kafka: its topic, and key and value as texts or null. What differs from recording to recording are times,
transactions and positions in the log.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from adbc_driver_postgresql import dbapi  # noqa: E402
from confluent_kafka import Message  # noqa: E402

from holdfast.spark.java import ensure_java  # noqa: E402
from holdfast.testing import KafkaServer  # noqa: E402
from holdfast.testing.server.kafka import kafka_jars  # noqa: E402
from scripts.jars import bring_all  # noqa: E402
from tests.postgres import FAST, PostgresServer  # noqa: E402
from tests.stories.kafka import messages  # noqa: E402

LOCK: Final = ROOT / "requirements-debezium.lock"
JARS: Final = Path(sys.prefix, "debezium")
RECORDING: Final = ROOT / "tests" / "golden" / "debezium.jsonl.gz"
CONNECTORS: Final = ("plain", "texts", "wrapped")
TABLES: Final = {"people": "FULL", "things": "DEFAULT"}
LAST: Final = 99
"""The id of the row that is written when the history is over."""
PATIENCE: Final = 120

_COLUMNS: Final = """
    id bigint primary key, name text, born date, at timestamp, seen timestamptz, wakes time, amount numeric(10, 2),
    rate double precision, height real, steps integer not null default 3, floor smallint, is_member boolean,
    photo bytea, more jsonb, long_story text, long_photo bytea, long_more jsonb, long_words text[],
    long_numbers integer[]
"""
_LONG: Final = ("long_story", "long_photo", "long_more", "long_words", "long_numbers")
_KELP: Final = """
    (1, 'kelp', '2024-10-04', '2024-10-04 12:30:00.123456', '2024-10-04 12:30:00.5+02', '06:30:00', 12345.67,
    0.1, 1.5, 7, -2, true, '\\x00ff10', '{"a": [1, null]}')
"""
_NULLS: Final = "(2, null, null, null, null, null, null, null, null, 0, null, null, null, null)"
_STORED_ASIDE: Final = """
    insert into {0} (id, long_story, long_photo, long_more, long_words, long_numbers)
    select 7, string_agg(w, ''), string_agg(w, '')::bytea, jsonb_agg(w), array_agg(w),
        (select array_agg(n * n) from generate_series(1, 700) n)
    from (select md5(n::text) from generate_series(1, 70) n) t(w)
"""
_HISTORY: Final = (
    "insert into {0} (id, name, steps) values (3, 'crab', 1)",
    "update {0} set name = 'rock', amount = -0.01 where id = 1",
    "update {0} set name = 'sand', born = '1969-12-31' where id = 2",
    "update {0} set name = null where id = 3",
    "update {0} set id = 4 where id = 3",
    "insert into {0} (id, name) values (5, 'sea'), (6, 'é漢\"\\')",
    "delete from {0} where id = 5",
    "insert into {0} (id, name) values (5, 'sea again')",
    "delete from {0} where id = 2",
    # Values that Postgres stores out of line; an update of another column does not tell them again.
    _STORED_ASIDE,
    "update {0} set name = 'short' where id = 7",
    "select pg_logical_emit_message(true, 'holdfast', 'from a program')",
    f"insert into {{0}} (id) values ({LAST})",
)
_TEXTS: Final = {"decimal.handling.mode": "string", "time.precision.mode": "isostring"}
"""Without these a decimal is bytes and a time is a number, and only the schema says what they mean."""
_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
"""


def execute(server: PostgresServer, *statements: str) -> list[Any]:
    """Runs statements, each in a transaction of its own; what the last one returned."""
    with dbapi.connect(server.uri, autocommit=True) as connection, connection.cursor() as cursor:
        found: list[Any] = []
        for statement in statements:
            cursor.execute(statement)
            found = cursor.fetchall() if statement.startswith("select") else []
        return found


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    """Asks until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.5)


def settings(name: str, database: PostgresServer) -> dict[str, str]:
    """What a connector is told."""
    is_wrapped = str(name == "wrapped").lower()
    return {
        "name": name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(database.port),
        "database.user": "holdfast",
        "database.password": "",
        "database.dbname": "postgres",
        "topic.prefix": name,
        "slot.name": name,
        "publication.name": name,
        "publication.autocreate.mode": "filtered",
        "table.include.list": ",".join(f"public.{table}" for table in TABLES),
        "provide.transaction.metadata": is_wrapped,
        **(_TEXTS if name == "texts" else {}),
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": is_wrapped,
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": is_wrapped,
    }


def connect(place: Path, database: PostgresServer, broker: KafkaServer) -> subprocess.Popen[bytes]:
    """Kafka Connect with all connectors, in one process."""
    (place / "log4j2.properties").write_text(_LOGGING)
    worker = {
        "bootstrap.servers": broker.bootstrap_servers,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "offset.storage.file.filename": str(place / "offsets"),
        "listeners": "http://127.0.0.1:0",
    }
    files = [place / "worker.properties"]
    for name, content in [("worker", worker), *((name, settings(name, database)) for name in CONNECTORS)]:
        (place / f"{name}.properties").write_text("".join(f"{key}={value}\n" for key, value in content.items()))
    files += [place / f"{name}.properties" for name in CONNECTORS]
    command = [
        str(ensure_java() / "bin" / "java"),
        "-Xmx512m",
        f"-Dlog4j2.configurationFile={place / 'log4j2.properties'}",
        "-cp",
        f"{JARS}/*:{kafka_jars()}/*",
        "org.apache.kafka.connect.cli.ConnectStandalone",
        *map(str, files),
    ]
    with (place / "log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def record(place: Path) -> list[dict[str, Any]]:
    """All records that the connectors write of the history."""
    replication = " -c wal_level=logical -c max_wal_senders=6 -c max_replication_slots=6"
    with PostgresServer(FAST + replication) as database, KafkaServer() as broker:
        for table, identity in TABLES.items():
            execute(
                database,
                f"create table {table} ({_COLUMNS})",
                f"alter table {table} replica identity {identity}",
                *(f"alter table {table} alter column {column} set storage external" for column in _LONG),
                f"insert into {table} values {_KELP}, {_NULLS}",
            )
        process = connect(place, database, broker)
        try:
            slots = "select count(*) from pg_replication_slots where active"
            wait_for("the connectors", lambda: execute(database, slots)[0][0] == len(CONNECTORS))
            for table in TABLES:
                execute(database, *(step.format(table) for step in _HISTORY))
            found: list[dict[str, Any]] = []
            for topic in [f"{name}.public.{table}" for name in CONNECTORS for table in TABLES]:
                wait_for(f"the end of {topic}", lambda topic=topic: is_whole(broker, topic))  # type: ignore[misc]
                found += texts(broker, topic)
            return found + texts(broker, "wrapped.transaction")
        except BaseException:
            sys.stderr.write((place / "log").read_text()[-4000:])
            raise
        finally:
            process.terminate()
            process.wait()


def is_whole(broker: KafkaServer, topic: str) -> bool:
    """Whether the last row has come."""
    try:
        return any(f'"id":{LAST}' in (line["value"] or "") for line in texts(broker, topic))
    except KeyError:  # there is no such topic yet
        return False


def texts(broker: KafkaServer, topic: str) -> list[dict[str, Any]]:
    """What is in a topic."""
    return [
        {"topic": topic, "key": record.key().decode(), "value": record.value() and record.value().decode()}
        for record in cast(list[Message], messages(broker.bootstrap_servers, topic))
    ]


def main() -> int:
    """Records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=RECORDING)
    target = parser.parse_args().to
    problem = bring_all(LOCK, JARS)
    if problem:
        sys.stderr.write(f"debezium: {problem}\n")
        return 1
    with tempfile.TemporaryDirectory() as place:
        lines = record(Path(place))
    content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    target.write_bytes(gzip.compress(content.encode(), mtime=0))
    sys.stdout.write(f"{len(lines)} records, {target.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
