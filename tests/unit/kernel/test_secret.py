"""What must not be shown is not, wherever somebody reads it."""

import logging
from pathlib import Path

import pytest

from holdfast.datastream.environment.launch import launching, with_options_from_outside
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.option import ConfigOption
from holdfast.kernel.secret import is_secret, shown, without_credentials
from holdfast.storage.file_system.s3_options import S3_ACCESS_KEY, S3_SECRET_KEY
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


@pytest.mark.parametrize("key", ["pipeline.name", "state.backend.type", "execution.checkpointing.dir", "spark.master"])
def test_others_are_shown(key: str) -> None:
    assert shown(key, 5) == "5"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (URL, "jdbc:postgresql://******@db.example/x?user=******&ssl=true&password=******"),
        ("could not reach http://u@h:80/a@b, sorry", "could not reach http://******@h:80/a@b, sorry"),
        ("zk://a:b:c@h1,h2 and s3://bucket/k@y", "zk://******@h1,h2 and s3://bucket/k@y"),
        ("https://h/c?sv=1&sig=abc%3D'", "https://h/c?sv=1&sig=******'"),
        ("a@b.example wrote to file:///tmp/x?y=1", "a@b.example wrote to file:///tmp/x?y=1"),
        ("postgres://u:p@ss@h/x", "postgres://******@h/x"),
    ],
)
def test_urls_lose_who_one_is(text: str, wanted: str) -> None:
    assert without_credentials(text) == wanted


def test_a_job_shows_none_over_rest(tmp_path: Path) -> None:
    job = Running(tmp_path, **SECRETS, **{DATABASE: URL})
    try:
        config = job.client.get("config")["execution-config"]["user-config"]
    finally:
        job.end()
    assert "HIDE" not in str(config)
    assert all(config[key] == "******" for key in SECRETS)
    assert config[DATABASE].startswith("jdbc:postgresql://******@db.example/x")


def test_neither_messages_nor_logs_nor_what_python_prints_has_any(caplog: pytest.LogCaptureFixture) -> None:
    configuration = Configuration({**SECRETS, DATABASE: URL})
    assert "HIDE" not in repr(configuration)
    option = ConfigOption("test.secret-number", int, 0, "A number that nobody is to see.")
    with pytest.raises(ConfigurationError, match=r"'\*+' is not") as caught:
        option.parse("HIDE")
    assert caught.value.__cause__ is None
    caplog.set_level(logging.INFO)
    with launching(Configuration(dict.fromkeys([*SECRETS, DATABASE], "x"))):
        with_options_from_outside(configuration)
    assert "is replaced from the command line" in caplog.text and "HIDE" not in caplog.text
