"""What a user may write for an option, and what is refused."""

import enum
import logging
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.kernel import configuration as registry
from holdfast.kernel.configuration import (
    ConfigOption,
    Configuration,
    DurationType,
    MemorySize,
    all_options,
    parse_duration,
    parse_memory_size,
)


class Mode(enum.Enum):
    NO_CLAIM = "no claim"
    CLAIM = "claim"


TEXT = ConfigOption("test.text", str, "x", "A text.")
NUMBER = ConfigOption("test.number", int, 3, "A number.", deprecated_keys=("test.old-number", "test.older"))
RATIO = ConfigOption("test.ratio", float, 0.5, "A ratio.")
SWITCH = ConfigOption("test.switch", bool, False, "A switch.", fallback_keys=("test.master-switch",))
PAUSE = ConfigOption("test.pause", DurationType, 1000, "A pause.")
SIZE = ConfigOption("test.size", MemorySize, 20480, "A size.")
CHOICE = ConfigOption("test.mode", Mode, Mode.NO_CLAIM, "A choice.")
NAMES = ConfigOption("test.names", list[str], [], "Names.")
GENERAL = ConfigOption("test.general", str, "all", "What a more specific option falls back to.")
SPECIFIC = ConfigOption("test.specific", str, None, "More specific.", fallback_keys=("test.general", "test.alias"))
AMONG_FLINKS = ConfigOption("table.test-size", int, 1, "A number whose key begins like options of Flink.")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10 s", 10_000),
        ("10s", 10_000),
        ("100ms", 100),
        ("1.5 h", 5_400_000),
        ("10 min", 600_000),
        ("1 d", 86_400_000),
        ("30000", 30_000),
        (30_000, 30_000),
        (timedelta(seconds=2), 2000),
        ("0 s", 0),
        ("2.5", 2),
        ("5 milli", 5),
        ("5 Millis", 5),
        ("5000 micro", 5),
        ("5000micros", 5),
        ("5000 \N{MICRO SIGN}s", 5),
        ("5000 \N{GREEK SMALL LETTER MU}s", 5),
        ("5000 us", 5),
        ("5000000 nano", 5),
        ("5000000nanos", 5),
        ("3 minutes", 180_000),
    ],
)
def test_lengths_of_time(text, milliseconds):
    assert parse_duration(text) == milliseconds == Configuration({"test.pause": text}).get(PAUSE)


@pytest.mark.parametrize(
    ("text", "size"),
    [("20 kb", 20480), ("64mb", 64 << 20), ("4096", 4096), (17, 17), ("1 GB", 1 << 30), ("1g", 1 << 30)],
)
def test_sizes_have_kilobytes_of_1024_bytes(text, size):
    assert parse_memory_size(text) == size == Configuration({"test.size": text}).get(SIZE)


@given(st.integers(0, 10**15))
def test_any_number_of_milliseconds_is_read_back(milliseconds):
    assert parse_duration(str(milliseconds)) == parse_duration(milliseconds) == milliseconds
    assert parse_duration(f"{milliseconds % 10**9} ms") == milliseconds % 10**9


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (PAUSE, "soon"),
        (PAUSE, ""),
        (PAUSE, "s"),
        (PAUSE, "5 hs"),
        (PAUSE, "1 h 30 min"),
        (PAUSE, "-1 s"),
        (PAUSE, -5),
        (PAUSE, True),
        (SIZE, "big"),
        (SIZE, 1.5),
        (NUMBER, "3.5"),
        (NUMBER, True),
        (NUMBER, 2.0),
        (RATIO, "nan"),
        (RATIO, "half"),
        (SWITCH, "yes"),
        (SWITCH, 1),
        (CHOICE, "maybe"),
        (NAMES, [1]),
        (NAMES, 5),
        (TEXT, ["a"]),
        (TEXT, None),
    ],
)
def test_a_value_of_another_type_is_refused_where_it_is_set(option, value):
    with pytest.raises(ConfigurationError) as caught:
        Configuration().set(option, value)
    assert repr(option.key) in str(caught.value)


def test_values_given_as_text_and_as_themselves_are_the_same():
    given_as_text = Configuration.from_properties(
        [
            "test.number=7",
            "test.ratio=0.25",
            "test.switch=TRUE",
            "test.mode=no-claim",
            "test.names=a; b",
            "test.text=p=q",
        ]
    )
    given_as_values = Configuration(
        {
            "test.number": 7,
            "test.ratio": 0.25,
            "test.switch": True,
            "test.mode": Mode.NO_CLAIM,
            "test.names": ["a", "b"],
            "test.text": "p=q",
        }
    )
    for option in (NUMBER, RATIO, SWITCH, CHOICE, NAMES, TEXT):
        assert given_as_text.get(option) == given_as_values.get(option)


def test_a_choice_is_read_by_name_or_value_in_any_case():
    for text in ("CLAIM", "claim", "Claim"):
        assert Configuration({"test.mode": text}).get(CHOICE) is Mode.CLAIM
    assert Configuration({"test.mode": "NO_CLAIM"}).get(CHOICE) is Mode.NO_CLAIM


def test_unset_options_have_their_default():
    empty = Configuration()
    assert empty.get(NUMBER) == 3
    assert empty.get(NUMBER, 9) == 9
    assert not empty.contains(NUMBER)


def test_the_current_key_wins_over_deprecated_ones_and_those_by_their_order():
    assert Configuration({"test.older": 1, "test.old-number": 2, "test.number": 3}).get(NUMBER) == 3
    assert Configuration({"test.older": 1, "test.old-number": 2}).get(NUMBER) == 2
    assert Configuration({"test.older": 1}).get_integer("test.number") == 1
    assert Configuration({"test.master-switch": True}).get(SWITCH) is True


def test_a_deprecated_key_is_mentioned_once(caplog):
    option = ConfigOption("test.fresh", int, 0, "Fresh.", deprecated_keys=("test.stale",))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert Configuration({"test.stale": 5}).get(option) == 5
    assert [record.getMessage() for record in caplog.records] == [
        "Option 'test.stale' is deprecated, use 'test.fresh'."
    ]


def test_unknown_keys_are_refused_with_the_nearest_known_ones():
    with pytest.raises(ConfigurationError) as caught:
        Configuration({"test.nmuber": 1, "test.pauze": "1 s"}).validate()
    assert "'test.nmuber' is unknown. Did you mean 'test.number'" in str(caught.value)
    assert "'test.pause'" in str(caught.value)


def test_keys_of_others_pass():
    Configuration(
        {
            "spark.sql.shuffle.partitions": "2",
            "pipeline.global-job-parameters.x": 1,
            "test.old-number": 1,
        }
    ).validate()


def test_what_overrides_wins_also_under_an_older_name_and_says_what_it_replaced():
    program = Configuration({"test.number": 1, "test.text": "same", "test.ratio": 0.1})
    flags = Configuration({"test.old-number": "2", "test.text": "same", "test.pause": "1 s"})
    combined, replaced = flags.overriding(program)
    assert combined.get(NUMBER) == 2
    assert combined.get(RATIO) == 0.1
    assert combined.get(PAUSE) == 1000
    assert replaced == {"test.number": 1}
    assert program.get(NUMBER) == 1


def test_what_overrides_leaves_alone_the_option_that_another_one_falls_back_to():
    for mine, theirs in ((SPECIFIC.key, GENERAL.key), (GENERAL.key, SPECIFIC.key)):
        combined, replaced = Configuration({mine: "mine"}).overriding(Configuration({theirs: "theirs"}))
        assert combined.to_dict() == {mine: "mine", theirs: "theirs"}
        assert replaced == {}


def test_what_overrides_wins_over_another_name_that_is_no_option_of_its_own():
    for mine, theirs in ((SPECIFIC.key, "test.alias"), ("test.alias", SPECIFIC.key)):
        combined, replaced = Configuration({mine: "mine"}).overriding(Configuration({theirs: "theirs"}))
        assert combined.to_dict() == {mine: "mine"}
        assert replaced == {theirs: "theirs"}


def test_the_getters_and_setters_of_pyflink():
    configuration = (
        Configuration()
        .set_string("free.text", "t")
        .set_integer("free.int", 1)
        .set_long("free.long", 2**40)
        .set_float("free.float", 1.5)
        .set_boolean("free.bool", True)
        .set_bytearray("free.bytes", b"b")
    )
    assert configuration.get_string("free.text") == "t"
    assert configuration.get_string("free.int") == "1"
    assert configuration.get_integer("free.int") == 1
    assert configuration.get_long("free.long") == 2**40
    assert configuration.get_float("free.float") == 1.5
    assert configuration.get_boolean("free.bool") is True
    assert configuration.get_bytearray("free.bytes") == bytearray(b"b")
    assert configuration.get_string("absent", "default") == "default"
    assert configuration.contains_key("free.int") and not configuration.contains_key("absent")
    with pytest.raises(ConfigurationError):
        configuration.get_integer("free.text")


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("taskmanager.memory.process.size", "spark.executor.memory"),
        ("python.requirements", "spark.archives"),
        ("pipeline.jars", "spark.jars"),
        ("python.client.executable", "the Python that runs the program"),
        ("table.exec.state.ttl", "Spark SQL"),
        ("slot.request.timeout", "spark.executor.cores"),
        ("pipeline.global-job-parameters", "pipeline.global-job-parameters.<name>"),
        ("metrics.reporter.prom.factory.class", "/metrics at the REST port"),
        ("metrics.scope.jm", "metrics.md"),
        ("jobmanager.execution.failover-strategy", "all of its tasks"),
        ("jobmanager.rpc.address", "rest.address"),
        ("security.ssl.rest.enabled", "rest.tls"),
        ("security.delegation.tokens.enabled", "spark.security.credentials"),
        ("kubernetes.container.image.ref", "spark.kubernetes"),
        ("zookeeper.sasl.disable", "high-availability.zookeeper.client.authorization"),
        ("high-availability.use-old-ha-services", "one implementation"),
        ("fs.s3a.endpoint", "s3\\.\\*"),
        ("historyserver.archive.fs.dir", "jobstore.max-capacity"),
        ("jobstore.type", "jobstore.max-capacity"),
        ("blob.server.port", "high-availability.storageDir"),
        ("resourcemanager.taskmanager-timeout", "spark.dynamicAllocation"),
        ("task.cancellation.timeout", "spark.task.reaper"),
        ("env.log.dir", "HOLDFAST_LOG_LEVEL"),
        ("traces.reporters", "metrics.reporter.otel"),
        ("rest.url-prefix", "proxy"),
        ("rest.await-leader-timeout", "30 s"),
        ("rest.retry.max-attempts", "triggerId"),
        ("rest.connection-timeout", "--timeout"),
        ("rest.idleness-timeout", "rest.server.request-timeout"),
        ("rest.client.max-content-length", "any length"),
        ("rest.cache.checkpoint-statistics.timeout", "memory"),
        ("rest.flamegraph.enabled", "spark.python.profile"),
        ("rest.profiling.dir", "spark.python.profile"),
        ("client.heartbeat.interval", "holdfast submit"),
        ("process.taskmanager.working-dir", "spark.local.dir"),
        ("execution.submit-failed-job-on-application-error", "FAILED"),
        ("user.artifacts.artifact-list", "--files"),
        ("sql-gateway.endpoint.rest.address", "Spark SQL"),
        ("local.number-taskmanager", "spark.master"),
    ],
)
def test_an_option_of_flink_that_means_nothing_here_is_refused_with_what_to_use(key, instead):
    with pytest.raises(ConfigurationError, match=f"'{key}' has no meaning here: .*{instead}"):
        Configuration({key: "1"}).validate()


def test_a_mistyped_name_of_ours_is_not_taken_for_one_of_flink():
    with pytest.raises(ConfigurationError, match=r"unknown\. Did you mean 'table\.test-size'"):
        Configuration({"table.test-sizes": "1"}).validate()


def test_values_are_asked_for_and_handed_on_by_pyflinks_names():
    configuration = Configuration.from_dict({"test.number": 1}).set_boolean("free.bool", True)
    assert configuration.get_integer(key="absent", default_value=7) == 7
    assert configuration.get_boolean(key="free.bool", default_value=False) is True
    target = {"before": 0}
    configuration.add_all_to_dict(target)
    assert target == {"before": 0, "test.number": 1, "free.bool": True}
    assert Configuration(other=configuration) == configuration
    assert configuration.remove_config(key="free.bool") and not configuration.contains_key(key="free.bool")


@pytest.mark.parametrize("other", ["test.number=1", ["test.number=1"], object()])
def test_what_holds_no_options_is_refused_with_where_a_session_goes(other):
    with pytest.raises(ConfigurationError, match=r"A Configuration or a dict is needed, not .*spark="):
        Configuration(other)


def test_copies_are_independent():
    one = Configuration({"test.number": 1})
    other = one.clone().add_all({"b": 2}, "a.")
    other.set(NUMBER, 5)
    assert one.to_dict() == {"test.number": 1}
    assert other.to_dict() == {"test.number": 5, "a.b": 2}
    assert pickle.loads(pickle.dumps(other)) == other
    assert other.remove(NUMBER) and not other.remove(NUMBER)
    assert other.key_set() == {"a.b"}


def test_an_option_is_defined_once():
    assert all_options()["test.number"] is NUMBER
    assert pickle.loads(pickle.dumps(NUMBER)) is NUMBER
    with pytest.raises(ConfigurationError, match="defined twice"):
        ConfigOption("test.number", int, 4, "Another default.")
    assert registry.options_for("test.number") == (NUMBER,)


@pytest.mark.parametrize("text", ["novalue", "=x", ""])
def test_properties_without_key_or_value_are_refused(text):
    with pytest.raises(ConfigurationError, match="key=value"):
        Configuration.from_properties([text])
