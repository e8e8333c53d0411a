"""What must not be shown is not, wherever somebody reads it."""

import logging
from pathlib import Path

import pytest

from holdfast.datastream.environment.launch import effective_configuration, program_overrides
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import ConfigOption, Configuration
from holdfast.kernel.secret import is_secret, redacted_value, without_credentials
from holdfast.storage.object_store import S3_ACCESS_KEY, S3_SECRET_KEY
from tests.stories.served import Running

SECRETS = {
    "high-availability.zookeeper.client.authorization": "digest:alice:HIDE1",
    "queryable-state.token": "HIDE2",
    "s3.access-key": "HIDE3",
    "s3.secret-key": "HIDE4",
    "spark.hadoop.fs.azure.account.key.store": "HIDE5",
    "spark.ssl.keyPassword": "HIDE6",
    "spark.hadoop.fs.s3a.access.key": "HIDE7",
}
URL = "jdbc:postgresql://HIDE8:HIDE9@db.example/x?user=HIDE10&ssl=true&password=HIDE11"
DATABASE = "pipeline.global-job-parameters.db"


@pytest.mark.parametrize("key", [*SECRETS, S3_ACCESS_KEY.key, S3_SECRET_KEY.key, *S3_SECRET_KEY.deprecated_keys])
def test_options_with_such_words_are_secret(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "metrics.reporter.x.auth-params",
        "x.service-key",
        "rest.basic-auth",
        "basic.auth.user.info",
        "rest.client.http-headers",
        "table.password",
        "x.apikey",
        "x.api-key",
        "kafka.sasl.jaas.config",
        "kafka.ssl.keystore.key",
        "ssl.key.pem",
        "spark.hadoop.fs.azure.sas.container.account.blob.core.windows.net",
        "spark.hadoop.fs.s3a.encryption.key",
        "parquet.encryption.key.list",
        "encryption-key",
        "sse-customer-key",
        "db.pwd",
        "db.pass",
        "DB_PASS",
        "pwd",
    ],
)
def test_what_flink_kafka_and_the_clouds_keep_secret_is(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "pipeline.name",
        "state.backend.type",
        "execution.checkpointing.dir",
        "spark.master",
        "key.deserializer",
        "key.format",
        "primary-key",
        "message.key",
        "state.backend.cache.key",
        "pipeline.passthrough",
        "proxy.bypass",
        "pass-through",
        "passes",
        "kafka.ssl.key.location",
        "kafka.ssl.truststore.location",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.certificate.chain",
        "spark.io.encryption.keySizeBits",
        "spark.network.crypto.keyLength",
        "rest.authority",
    ],
)
def test_others_are_shown(key: str) -> None:
    assert redacted_value(key, 5) == "5"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (URL, "jdbc:postgresql://******@db.example/x?user=******&ssl=true&password=******"),
        ("could not reach http://u@h:80/a@b, sorry", "could not reach http://******@h:80/a@b, sorry"),
        ("zk://a:b:c@h1,h2 and s3://bucket/k@y", "zk://******@h1,h2 and s3://bucket/k@y"),
        ("https://h/c?sv=1&sig=abc%3D'", "https://h/c?sv=1&sig=******'"),
        ("a@b.example wrote to file:///tmp/x?y=1", "a@b.example wrote to file:///tmp/x?y=1"),
        ("postgres://u:p@ss@h/x", "postgres://******@h/x"),
        ("postgres://u:p@ss/w@h/x", "postgres://******@h/x"),
        ("https://u:p/q@h/x", "https://******@h/x"),
        ("https://u:p#q@h/x", "https://******@h/x"),
        ("https://u:p?q@h", "https://******@h"),
        ("https://u:p?a=q@h/x", "https://******@h/x"),
        ("'https://u:p\"q@h/x'", "'https://******@h/x'"),
        ("redis://:pw@h", "redis://******@h"),
        ("https://u:p@h.example/@b/c?mail=a@b", "https://******@h.example/@b/c?mail=a@b"),
        ("https://u:p@h:80/a@b", "https://******@h:80/a@b"),
        ("jdbc:oracle:thin:scott/tiger@host:1521:x", "jdbc:oracle:thin:******@host:1521:x"),
        ("jdbc:oracle:thin:scott/ti@ger@//host:1521/x", "jdbc:oracle:thin:******@//host:1521/x"),
        ("jdbc:sqlserver://h;user=me;password={a;b};x=1", "jdbc:sqlserver://h;user=******;password=******;x=1"),
        ("jdbc:h2:mem:x;USER=me;PASSWORD=pw;MODE=1", "jdbc:h2:mem:x;USER=******;PASSWORD=******;MODE=1"),
        ('jdbc:postgresql://h/x?password="q w"&y=1', 'jdbc:postgresql://h/x?password="******"&y=1'),
        ("no host=h user=u password=pw here", "no host=h user=****** password=****** here"),
        (r"host=h password='q \' w' dbname=x", "host=h password='******' dbname=x"),
        ("connect(dsn='host=h password=pw')", "connect(dsn='host=h password=******')"),
        ("host=h password='it was cut her", "host=h password='******'"),
        ("-D s3.secret-key=HIDE", "-D s3.secret-key=******"),
        ("{'user': 'u', 'password': 'q w', 'n': 1}", "{'user': 'u', 'password': '******', 'n': 1}"),
        (r'{"a": "{\"api-key\":\"x\"}"}', r'{"a": "{\"api-key\":\"******\"}"}'),
        (
            "k=-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----",
            "k=-----BEGIN PRIVATE KEY-----******-----END PRIVATE KEY-----",
        ),
    ],
)
def test_urls_lose_who_one_is(text: str, wanted: str) -> None:
    assert without_credentials(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "http://[::1]:80/a@b",
        "mongodb://h1:27017,h2:27017/db@x",
        "jdbc:hive2://h:10000/default;principal=hive/h@REALM",
        "jdbc:oracle:thin:@host:1521:x",
        "abfss://container@account.dfs.core.windows.net/x",
        '{"url":"https://h","mail":"a@b"}',
        "Row(user='ann', amount=3), bob@h, key=5, signed: 'x'",
        "s3://bucket/words/token=abc/user=5/part-0.parquet",
        'File "/app/user@2/job.py", line 3, in close',
        "the password has expired: ask for a token, then set user = it",
    ],
)
def test_texts_that_only_look_so_stay(text: str) -> None:
    assert without_credentials(text) == text


@pytest.mark.parametrize(
    "part", ["user=1 ", "password='", "://u:p", "'a': ", "jdbc:oracle:thin:a/", "?a=", "a.", "\\'x=", "k@"]
)
def test_a_text_of_a_megabyte_holds_nobody_up(part: str) -> None:
    without_credentials("@ =:" + part * (1_000_000 // len(part)))


def test_rest_shows_no_secret(tmp_path: Path) -> None:
    job = Running(tmp_path, **SECRETS, **{DATABASE: URL})
    try:
        config = job.client.get("config")["execution-config"]["user-config"]
    finally:
        job.end()
    assert "HIDE" not in str(config)
    assert all(config[key] == "******" for key in SECRETS)
    assert config[DATABASE].startswith("jdbc:postgresql://******@db.example/x")


def test_messages_logs_and_reprs_show_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    configuration = Configuration({**SECRETS, DATABASE: URL})
    assert "HIDE" not in repr(configuration)
    option = ConfigOption("test.secret-number", int, 0, "A number that nobody is to see.")
    with pytest.raises(ConfigurationError, match=r"'\*+' is not") as caught:
        option.parse("HIDE")
    assert caught.value.__cause__ is None
    caplog.set_level(logging.INFO)
    with program_overrides(Configuration(dict.fromkeys([*SECRETS, DATABASE], "x"))):
        effective_configuration(configuration)
    assert "is replaced from the command line" in caplog.text and "HIDE" not in caplog.text
