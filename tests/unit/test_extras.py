"""Each extra alone, in an environment that has nothing else: it brings what its documented uses need.

The environment of a developer has all of them, so nothing else shows what one lacks. Where a use needs a server, its
objects are made; tables, files, databases and SQL are written and read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

RUN = """
import datetime, tempfile
from holdfast.testing import EpochProgram

place = tempfile.mkdtemp()
AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

def write(sink, name, columns="id bigint, at timestamp", rows=((1, AT), (2, AT))):
    program = EpochProgram()
    program.source("in", columns).sink_to(sink).uid("out")
    program.run(f"{place}/{name}", [{"in": list(rows)}, {"in": list(rows)}])
"""

USES = {
    "": """
from holdfast.cli import main
from holdfast.datastream import ParquetFileSink
from holdfast.queryable import QueryableStateClient
from holdfast.testing import OperatorHarness
write(ParquetFileSink(f"{place}/out"), "job")
""",
    "zookeeper": """
from holdfast.ha.zookeeper import connection
from holdfast.ha.zookeeper.services import ZooKeeperClientHaServices, ZooKeeperLeaderElectionHaServices
""",
    "kubernetes": """
from holdfast.ha import kubernetes
for name in kubernetes.__all__:
    getattr(kubernetes, name)
""",
    "s3": """
from holdfast.datastream import ParquetFileSink
from holdfast.storage.object_store import S3Options, connect
from holdfast.storage.scheme import file_system_for
from holdfast.storage.uploads import uploads_for
ParquetFileSink("s3://bucket/out")
connect("bucket", S3Options(access_key="a", secret_key="b"))
file_system_for("s3://bucket/out")
uploads_for("s3://bucket/out")
import boto3
""",
    "kafka": """
from holdfast.common import SimpleStringSchema
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource
KafkaSource.builder().set_bootstrap_servers("localhost:1").set_topics("a").set_value_only_deserializer(
    SimpleStringSchema()).build()
schema = KafkaRecordSerializationSchema.builder().set_topic("a").set_value_serialization_schema(
    SimpleStringSchema()).build()
KafkaSink.builder().set_bootstrap_servers("localhost:1").set_record_serializer(schema).set_delivery_guarantee(
    DeliveryGuarantee.EXACTLY_ONCE).set_transactional_id_prefix("t").build()
from holdfast.datastream.connectors.kafka.client import KafkaConnection
from holdfast.datastream.connectors.kafka.kafka_committer import KafkaCommitter
""",
    "avro": """
from holdfast.common import Row
from holdfast.datastream.formats.avro import AvroRowDeserializationSchema, AvroRowSerializationSchema
SCHEMA = '''{"type": "record", "name": "Count", "fields": [
    {"name": "word", "type": "string"}, {"name": "n", "type": "long"}]}'''
data = AvroRowSerializationSchema(avro_schema_string=SCHEMA).serialize(Row(word="kelp", n=7))
assert tuple(AvroRowDeserializationSchema(avro_schema_string=SCHEMA).deserialize(data)) == ("kelp", 7)
""",
    "schema-registry": """
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from holdfast.datastream.connectors.kafka import ConfluentDeserialization, ConfluentSerialization
client = SchemaRegistryClient({"url": "http://localhost:1"})
AvroDeserializer(client)
AvroSerializer(client, '{"type": "record", "name": "C", "fields": [{"name": "n", "type": "long"}]}')
JSONSerializer('{"type": "object", "title": "C"}', client)
JSONDeserializer('{"type": "object", "title": "C"}')
ConfluentDeserialization(lambda: AvroDeserializer(client), "word string, n bigint", "words")
ConfluentSerialization(lambda: None, "counts")
""",
    "delta": """
from deltalake import DeltaTable
from holdfast.datastream.connectors.delta import DeltaSink
for key, expected in ((), 4), (("id",), 2):
    for part in (), ("id",):
        path = f"{place}/{len(key)}{len(part)}"
        write(DeltaSink(path, key=key, partition_by=part, create_table=True), f"job{len(key)}{len(part)}")
        rows = DeltaTable(path).to_pyarrow_table().num_rows
        assert rows == expected, (key, part, rows)
""",
    "iceberg": """
from pyiceberg.catalog import load_catalog
from holdfast.datastream.connectors.iceberg import IcebergSink
catalog = {"type": "sql", "uri": f"sqlite:///{place}/c.db", "warehouse": f"file://{place}/tables"}
for key, expected in ((), 4), (("id",), 2):
    for part in "", "id", "year(at)", "month(at)", "day(at)", "hour(at)":
        name = f"{'keyed' if key else 'added'}_{part.partition('(')[0]}"
        more = {"partition_by": part} if part else {}
        write(IcebergSink("prod", f"db.{name}", properties=catalog, key=key, create_table=True, **more), name)
        rows = load_catalog("prod", **catalog).load_table(f"db.{name}").scan().to_arrow().num_rows
        assert rows == expected, (key, part, rows)
""",
    "database": """
import adbc_driver_postgresql.dbapi
import adbc_driver_sqlite.dbapi as sqlite
from holdfast.datastream.connectors.database import DatabaseSink
DatabaseSink("postgresql://localhost:1/db", "t")
for name, more, expected in ("added", {}, 4), ("keyed", {"key": "id"}, 2), ("refused", {"refused_table": "r"}, 4):
    write(DatabaseSink(f"sqlite:///{place}/out.db", name, create_table=True, **more), name, "id bigint, word string",
        [(1, "kelp"), (2, "rock")])
    with sqlite.connect(f"{place}/out.db") as connection, connection.cursor() as cursor:
        cursor.execute(f"select count(*) from {name}")
        assert cursor.fetchone() == (expected,), name
""",
    "sql": """
from click.testing import CliRunner
from holdfast.cli import main
program = EpochProgram()
words = program.source("in", "word string").key_by("word").count().uid("count")
words.for_each_epoch(lambda frame, epoch: None).uid("out")
program.run(f"{place}/job", [{"in": [("kelp",), ("rock",), ("kelp",)]}])
found = CliRunner().invoke(main, ["state", "sql", f"{place}/job", 'select count(*) as n from "count"."count"'])
assert (found.exit_code, found.output.split()) == (0, ["n", "2"]), found.output
""",
    "metrics": """
from holdfast.rest.prometheus import exposition
assert exposition([]).media_type
""",
    "otel": """
from holdfast.rest.otlp import OtlpReporter
reporter = OtlpReporter(list, "http://localhost:1/v1/metrics", 60.0, {})
reporter.start()
""",
    "columns": """
import pyarrow as pa
from holdfast.types import key_hash
assert key_hash._packages() is not None
""",
    "testing": """
import pathlib
from holdfast.testing import KubernetesApiServer
for tls in False, True:
    with KubernetesApiServer(tls=tls) as server:
        server.write_kubeconfig(pathlib.Path(place, "kubeconfig"))
""",
}
"""By extra what a program does with it; `spark` has a test of its own, `dev` and `docs` are for work on Holdfast."""


def run(*command: object, directory: Path) -> str:
    """Run a command that knows nothing of the environment of the tests."""
    leaves = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=leaves,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    run(
        UV, "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", directory, ROOT, directory=directory
    )
    [made] = directory.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with Holdfast and no extra, whose modules are compiled."""
    directory = tmp_path_factory.mktemp("core")
    environment = directory / "environment"
    run(UV, "venv", "--quiet", "--python", sys.executable, environment, directory=directory)
    python = environment / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", python, wheel, directory=directory)
    run(python, "-c", "import holdfast.cli, holdfast.datastream, holdfast.testing", directory=directory)
    return environment


@pytest.fixture
def python(core: Path, tmp_path: Path) -> Path:
    """The Python of a copy of it. The files are links: an installation replaces files, and changes none."""
    return Path(shutil.copytree(core, tmp_path / "environment", symlinks=True, copy_function=os.link), "bin", "python")


def test_each_extra_has_a_program() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*project["optional-dependencies"], ""} == {*USES, "spark", "dev", "docs"}


@pytest.mark.parametrize("extra", USES)
def test_an_extra_brings_what_its_documented_uses_need(tmp_path: Path, wheel: Path, python: Path, extra: str) -> None:
    run(UV, "pip", "install", "--quiet", "--python", python, f"{wheel}[{extra}]", directory=tmp_path)
    program = tmp_path / "program.py"
    program.write_text(RUN + USES[extra], encoding="utf-8")
    run(python, program, directory=tmp_path)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the oldest packages have no wheels for newer Pythons")
@pytest.mark.parametrize("extra", USES)
def test_an_extra_works_with_the_oldest_packages_that_it_allows(tmp_path: Path, wheel: Path, extra: str) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "environment", directory=tmp_path)
    install = (UV, "pip", "install", "--quiet", "--python", python)
    extras = ("--extra", extra) if extra else ()
    run(*install, "--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml", *extras, directory=tmp_path)
    run(*install, "--no-deps", wheel, directory=tmp_path)
    program = tmp_path / "program.py"
    program.write_text(RUN + USES[extra], encoding="utf-8")
    run(python, program, directory=tmp_path)


def test_a_partitioned_table_with_a_key_is_refused_at_the_start_without_its_package(
    tmp_path: Path, wheel: Path, python: Path
) -> None:
    """As it was with `pip install 'holdfast[iceberg]'`: the job staged rows that it could never commit."""
    run(UV, "pip", "install", "--quiet", "--python", python, f"{wheel}[iceberg]", directory=tmp_path)
    run(UV, "pip", "uninstall", "--quiet", "--python", python, "pyiceberg-core", directory=tmp_path)
    program = tmp_path / "program.py"
    program.write_text(
        f"""{RUN}
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.errors import ConfigurationError
catalog = {{"type": "sql", "uri": f"sqlite:///{{place}}/c.db", "warehouse": f"file://{{place}}/tables"}}
sink = lambda name, part: IcebergSink(
    "prod", name, properties=catalog, key="id", partition_by=part, create_table=True)
write(sink("db.by_id", "id"), "by_id")
try:
    write(sink("db.by_day", "day(at)"), "by_day")
except ConfigurationError as error:
    assert "needs pyiceberg-core" in str(error) and "pip install 'holdfast[iceberg]'" in str(error), error
else:
    raise AssertionError("it was not refused")
""",
        encoding="utf-8",
    )
    run(python, program, directory=tmp_path)
