"""Options (their keys, types, defaults and deprecated keys) and configurations, which hold values by key.

A module that has options defines them at its top level; importing it makes them known to `Configuration.validate`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar, get_origin

import humanfriendly

from holdfast.errors import ConfigurationError
from holdfast.kernel.secret import get_logger, is_secret, redacted_value, without_credentials

logger = get_logger(__name__)

T = TypeVar("T")
_UNFIT: Final = (ValueError, TypeError, ArithmeticError)
_UNCHECKED_PREFIXES: Final = ("pipeline.global-job-parameters.", "spark.")
_MAX_KEY_LENGTH: Final = 200
"""No option has a longer key, so similar keys are not searched."""
_MAX_PROBLEMS: Final = 20
"""Number of problems that one message lists."""


class DurationType:
    """The type of options that are a length of time. Their values are whole milliseconds.

    Written as a number of milliseconds, a `datetime.timedelta`, or text such as ``10 s``, ``100ms`` or ``1.5 h``, with
    any of Flink's units.
    """


class MemorySize:
    """The type of options that are a size. Their values are whole bytes.

    Written as a number of bytes, or text such as ``20 kb`` or ``64 mb``; a kilobyte has 1024 bytes.
    """


class MemoryLimit:
    """The type of options that are a size, or -1 for no limit. Their values are whole bytes, or None."""


@dataclass(frozen=True, eq=False)
class ConfigOption(Generic[T]):
    """One option.

    >>> option = ConfigOption("example.retries", int, 10, "How often a call is retried.")
    >>> Configuration({"example.retries": "3"}).get(option)
    3

    Attributes:
        key: The current key.
        type: str, int, float, bool, list, DurationType, MemorySize, MemoryLimit or an Enum class.
        default: The value when the option is not set, already converted.
        description: The effect of the option, for the documentation.
        deprecated_keys: Older keys, accepted with a warning.
        fallback_keys: Keys of other options whose values apply when this option is not set.
    """

    key: str
    type: Any
    default: T
    description: str
    deprecated_keys: tuple[str, ...] = ()
    fallback_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = _options.get(self.key)
        if known is not None and (known.type, known.default) != (self.type, self.default):
            raise ConfigurationError(f"Option {self.key!r} is defined twice with different types or defaults.")
        _options[self.key] = self
        for alias in (*self.deprecated_keys, *self.fallback_keys):
            _by_alias.setdefault(alias, {})[self.key] = self

    def keys(self) -> Iterator[str]:
        """Yield all keys that may set the option; the first that is set wins."""
        yield self.key
        yield from self.deprecated_keys
        yield from self.fallback_keys

    def parse(self, value: Any, key: str | None = None) -> T:
        """Convert a value as it was set to the option's type.

        Args:
            value: The value.
            key: The key that set it, for the error message; default: the current key.

        Raises:
            ConfigurationError: The value is not of that type. The message names the key.
        """
        try:
            result: T = convert(self.type, value)
        except (*_UNFIT, humanfriendly.InvalidTimespan, humanfriendly.InvalidSize) as error:
            named = key or self.key
            raise ConfigurationError(
                f"Option {named!r}: {redacted_value(named, value)!r:.200} is not {describe_values(self.type)}."
            ) from (None if is_secret(named) else error)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return _lookup, (self.key,)


_UNITS: Final = {"": "ms", "milli": "ms", "millis": "ms", "nano": "ns", "nanos": "ns"} | dict.fromkeys(
    ("micro", "micros", "\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s"), "us"
)
"""Units of time of Flink that `humanfriendly` lacks, as units that it has."""
_options: dict[str, ConfigOption[Any]] = {}
_by_alias: dict[str, dict[str, ConfigOption[Any]]] = {}


def all_options() -> Mapping[str, ConfigOption[Any]]:
    """Return the options of all modules imported so far, by their current keys."""
    return MappingProxyType(_options)


def options_for(key: str) -> tuple[ConfigOption[Any], ...]:
    """Return the options that a key sets, under its current key or an older one; empty if the key is unknown."""
    own = _options.get(key)
    others = _by_alias.get(key, {})
    return ((own,) if own is not None else ()) + tuple(option for option in others.values() if option is not own)


def all_keys() -> frozenset[str]:
    """Return all known keys, including deprecated ones and fallbacks."""
    return frozenset(_options) | frozenset(_by_alias)


def is_unchecked(key: str) -> bool:
    """Return whether the key has a prefix that is not validated."""
    return key.startswith(_UNCHECKED_PREFIXES)


def parse_duration(value: Any) -> int:
    """Return a length of time in whole milliseconds; see `DurationType`.

    Raises:
        ConfigurationError: The value is not a length of time, or is negative.
    """
    try:
        return _duration(value)
    except (*_UNFIT, humanfriendly.InvalidTimespan) as error:
        raise ConfigurationError(f"{value!r:.200} is not {describe_values(DurationType)}.") from error


def parse_memory_size(value: Any) -> int:
    """Return a size in whole bytes; see `MemorySize`.

    Raises:
        ConfigurationError: The value is not a size, or is negative.
    """
    try:
        return _memory_size(value)
    except (*_UNFIT, humanfriendly.InvalidSize) as error:
        raise ConfigurationError(f"{value!r:.200} is not {describe_values(MemorySize)}.") from error


def as_text(value: Any) -> str:
    """Return a value as text that `ConfigOption.parse` reads back: for another process, a person or a file."""
    if isinstance(value, timedelta):
        return str(value // timedelta(milliseconds=1))
    if isinstance(value, (list, tuple)):
        items = [as_text(item) for item in value]
        return ";".join(items) + (";" if len(items) == 1 and "," in items[0] else "")
    return _text(value) if isinstance(value, (bool, Enum)) else str(value)


def describe_values(kind: Any) -> str:
    """Describe the values that an option of this type accepts, for error messages."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(repr(member.name) for member in kind)
    words = {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        DurationType: "a length of time such as '10 s', '100 ms' or a number of milliseconds",
        MemorySize: "a size such as '64 mb' or a number of bytes",
        MemoryLimit: "a size such as '64 mb', a number of bytes, or -1 for no limit",
    }
    return words.get(kind, "a list of texts, in one text separated by ';' or ','")


def _lookup(key: str) -> ConfigOption[Any]:
    return _options[key]


def convert(kind: Any, value: Any) -> Any:
    """Convert a value to an option's type.

    Raises:
        ValueError, TypeError, humanfriendly.InvalidTimespan, humanfriendly.InvalidSize: The value is not of that type.
    """
    if kind is list or get_origin(kind) is list:
        return _texts(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(kind, value)
    converters = {
        str: _text,
        int: _whole,
        float: _number,
        bool: _truth,
        DurationType: _duration,
        MemorySize: _memory_size,
        MemoryLimit: _memory_limit,
    }
    return converters[kind](value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (str, int, float)):
        return str(value)
    raise TypeError


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    number = float(value)
    if math.isnan(number):
        raise ValueError
    return number


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError


def _duration(value: Any) -> int:
    if isinstance(value, timedelta):
        result = value // timedelta(milliseconds=1)
    elif isinstance(value, int) and not isinstance(value, bool):
        result = value
    elif isinstance(value, str) and value.strip().isdecimal():
        result = int(value)
    elif isinstance(value, str):
        text = value.strip().lower()
        unit = text.lstrip("0123456789. ")
        number = text.removesuffix(unit)
        result = round(humanfriendly.parse_timespan(number + _UNITS.get(unit, unit)) * 1000)
    else:
        raise TypeError
    if result < 0:
        raise ValueError
    return result


def _memory_size(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        result = value
    elif isinstance(value, str):
        result = int(humanfriendly.parse_size(value, binary=True))
    else:
        raise TypeError
    if result < 0:
        raise ValueError
    return result


def _memory_limit(value: Any) -> int | None:
    return None if str(value).strip() == "-1" else _memory_size(value)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        parts = value.split(";" if ";" in value else ",")
        return [part.strip() for part in parts if part.strip()]
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return list(value)
    raise TypeError


def _member(kind: type[Enum], value: Any) -> Enum:
    if isinstance(value, kind):
        return value
    if isinstance(value, str):
        wanted = _folded(value)
        for member in kind:
            if wanted in (_folded(member.name), _folded(str(member.value))):
                return member
    raise ValueError


def _folded(text: str) -> str:
    return text.strip().lower().replace("-", "_")


_notified: set[str] = set()


@dataclass(frozen=True, eq=False)
class HarmlessOption(ConfigOption[T]):
    """Option that is accepted and has no effect.

    Attributes:
        reason: Why it has none.
    """

    reason: str = ""


@dataclass(frozen=True, eq=False)
class RefusedOption(ConfigOption[T]):
    """Option that is not supported; only its default is accepted.

    Attributes:
        reason: Why it is not supported.
    """

    reason: str = ""

    def parse(self, value: Any, key: str | None = None) -> T:
        """Return the default.

        Raises:
            ConfigurationError: The value is another one.
        """
        parsed = super().parse(value, key)
        if parsed != self.default:
            raise ConfigurationError(f"Option {key or self.key!r} cannot be {value!r}: {self.reason} Remove it.")
        return parsed


class Configuration:
    """Values by key, with typed access by `ConfigOption`.

    A value is kept as it was set and converted when it is read. A value of a known option is also checked when it is
    set. If both a current and a deprecated key are set, the current one wins.

    >>> configuration = Configuration({"execution.checkpointing.interval": "10 s"})
    >>> configuration.to_texts()
    {'execution.checkpointing.interval': '10 s'}

    Args:
        other: Initial values.
    """

    def __init__(self, other: Configuration | Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        if other is not None and not isinstance(other, (Configuration, Mapping)):
            raise ConfigurationError(
                f"A Configuration or a dict is needed, not {type(other).__name__}. Pass a Spark session to an "
                "environment as spark=...."
            )
        self.add_all(other or {})

    @classmethod
    def from_dict(cls, map: Mapping[str, Any]) -> Configuration:
        """Return a configuration with the values of a dictionary."""
        return cls(map)

    @classmethod
    def from_properties(cls, properties: Iterable[str]) -> Configuration:
        """Parse ``key=value`` texts, as on a command line.

        Raises:
            ConfigurationError: A text has no ``=`` or no key.
        """
        result = cls()
        for text in properties:
            key, equals, value = text.partition("=")
            if not equals or not key.strip():
                raise ConfigurationError(f"{without_credentials(text)!r} is not of the form key=value.")
            result.set(key.strip(), value.strip())
        return result

    def set(self, option: ConfigOption[Any] | str, value: Any) -> Configuration:
        """Set a value and return self.

        Raises:
            ConfigurationError: The value is None or not of the option's type.
        """
        key = option.key if isinstance(option, ConfigOption) else option
        if value is None:
            raise ConfigurationError(f"Option {key!r} cannot be set to None. Use remove() to unset it.")
        for known in options_for(key):
            known.parse(value, key)
        self._values[key] = value
        return self

    def get(self, option: ConfigOption[T], default: T | None = None) -> T:
        """Return the value of an option, else `default` if it is given, else the option's own default.

        Raises:
            ConfigurationError: The value that was set is not of the option's type.
        """
        key = self._key_set(option)
        if key is None:
            return option.default if default is None else default
        return option.parse(self._values[key], key)

    def contains(self, option: ConfigOption[Any] | str) -> bool:
        """Return whether a value is set, under the current key or an older one."""
        if isinstance(option, ConfigOption):
            return self._key_set(option) is not None
        return self._raw(option) is not None

    __contains__ = contains

    def contains_key(self, key: str) -> bool:
        """Return whether a value is set, under this key or another key of the same option."""
        return self.contains(key)

    def remove(self, option: ConfigOption[Any] | str) -> bool:
        """Unset an option under all of its keys, and return whether it was set."""
        keys = list(option.keys()) if isinstance(option, ConfigOption) else [option]
        return any([self._values.pop(key, None) is not None for key in keys])  # noqa: C419 - all must be removed

    def remove_config(self, key: str) -> bool:
        """Unset a key, and return whether it was set."""
        return self.remove(key)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the values as they were set."""
        return dict(self._values)

    def to_texts(self) -> dict[str, str]:
        """Return the values as equivalent texts, for another process or a person."""
        return {key: as_text(value) for key, value in self._values.items()}

    def key_set(self) -> frozenset[str]:
        """Return the keys that are set."""
        return frozenset(self._values)

    def clone(self) -> Configuration:
        """Return a copy."""
        result = Configuration()
        result._values.update(self._values)
        return result

    def add_all_to_dict(self, target_dict: dict[str, Any]) -> None:
        """Put all values into a dictionary."""
        target_dict.update(self._values)

    def add_all(self, other: Configuration | Mapping[str, Any], prefix: str | None = None) -> Configuration:
        """Set all values of another configuration, each key after the prefix, and return self.

        Raises:
            ConfigurationError: A value is not of its option's type.
        """
        values = other._values if isinstance(other, Configuration) else other
        for key, value in values.items():
            self.set((prefix or "") + key, value)
        return self

    def overriding(self, other: Configuration) -> tuple[Configuration, dict[str, Any]]:
        """Return these values on top of those of another configuration; neither is changed.

        A deprecated key here overrides the current key there as well. An option that only falls back to this one keeps
        its own value.

        Returns:
            The combined configuration, and the values of `other` that were replaced by a different one, by their keys.
        """
        values, replaced = other.to_dict(), {}
        for key, value in self._values.items():
            for rival in sorted(_names_of(key) & values.keys()):
                old = values.pop(rival)
                if old != value:
                    replaced[rival] = old
        result = Configuration()
        result._values = values | self._values
        return result, replaced

    def validate(self) -> None:
        """Check all keys and values against the options of all modules imported so far.

        Raises:
            ConfigurationError: A key is unknown or a value is not of its option's type. The message lists the problems,
                and for an unknown key the nearest known ones.
        """
        problems = []
        for key, value in sorted(self._values.items()):
            known = options_for(key)
            if not known and not is_unchecked(key):
                problems.append(_unknown(key))
            for option in known:
                try:
                    option.parse(value, key)
                except ConfigurationError as error:
                    problems.append(str(error))
        if problems:
            more = len(problems) - _MAX_PROBLEMS
            raise ConfigurationError(" ".join(problems[:_MAX_PROBLEMS]) + (f" And {more} more." if more > 0 else ""))

    def set_string(self, key: str, value: str) -> Configuration:
        """Set a text."""
        return self._set_as(str, key, value)

    def set_integer(self, key: str, value: int) -> Configuration:
        """Set a whole number."""
        return self._set_as(int, key, value)

    set_long = set_integer

    def set_float(self, key: str, value: float) -> Configuration:
        """Set a number."""
        return self._set_as(float, key, value)

    set_double = set_float

    def set_boolean(self, key: str, value: bool) -> Configuration:
        """Set true or false."""
        return self._set_as(bool, key, value)

    def set_bytearray(self, key: str, value: bytes | bytearray) -> Configuration:
        """Set bytes, for a key that is not an option."""
        return self.set(key, bytes(value))

    def get_string(self, key: str, default_value: str | None = None) -> str | None:
        """Return a value as text."""
        return self._get_as(str, key, default_value)

    def get_integer(self, key: str, default_value: int | None = None) -> int | None:
        """Return a value as a whole number."""
        return self._get_as(int, key, default_value)

    get_long = get_integer

    def get_float(self, key: str, default_value: float | None = None) -> float | None:
        """Return a value as a number."""
        return self._get_as(float, key, default_value)

    get_double = get_float

    def get_boolean(self, key: str, default_value: bool | None = None) -> bool | None:
        """Return a value as true or false."""
        return self._get_as(bool, key, default_value)

    def get_bytearray(self, key: str, default_value: bytes | None = None) -> bytearray | None:
        """Return bytes that were set with `set_bytearray`."""
        value = self._values.get(key, default_value)
        return None if value is None else bytearray(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return f"Configuration({ {key: redacted_value(key, value) for key, value in self._values.items()} })"

    def _key_set(self, option: ConfigOption[Any]) -> str | None:
        """Return the key that sets the option; warn once per process if it is deprecated."""
        for key in option.keys():  # noqa: SIM118 - not a mapping
            if key in self._values:
                if key in option.deprecated_keys and key not in _notified:
                    _notified.add(key)
                    logger.warning("Option %r is deprecated, use %r.", key, option.key)
                return key
        return None

    def _raw(self, key: str) -> Any:
        for option in options_for(key)[:1]:
            found = self._key_set(option)
            if found is not None:
                return self._values[found]
        return self._values.get(key)

    def _set_as(self, kind: type, key: str, value: Any) -> Configuration:
        return self.set(key, _as(kind, key, value))

    def _get_as(self, kind: type[T], key: str, default: T | None) -> T | None:
        value = self._raw(key)
        return default if value is None else _as(kind, key, value)


def _names_of(key: str) -> set[str]:
    """Return the keys that set the same option as this key, except keys of options that only fall back to it."""
    names = {key}
    for option in options_for(key):
        if option.key == key or not (key in option.fallback_keys and _is_current(key)):
            names |= {name for name in option.keys() if name == option.key or not _is_current(name)}  # noqa: SIM118
    return names


def _is_current(key: str) -> bool:
    return any(option.key == key for option in options_for(key))


def _as(kind: type[T], key: str, value: Any) -> T:
    try:
        result: T = convert(kind, value)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"Option {key!r}: {redacted_value(key, value)!r} is not {describe_values(kind)}."
        ) from error
    return result


_FLINK_ALTERNATIVES: Final = (
    ("taskmanager.", "executors are Spark's; set spark.executor.memory, spark.executor.cores and related options."),
    ("jobmanager.execution.", "a job that fails goes back to its last checkpoint with all of its tasks."),
    (
        "jobmanager.rpc.",
        "processes communicate by Spark, and with job managers by REST: rest.address, rest.bind-port.",
    ),
    ("jobmanager.archive.", "a job manager lists jobs that have ended: jobstore.max-capacity."),
    ("jobmanager.scheduler", "JobClient.rescale() changes the parallelism of a job that runs."),
    ("jobmanager.adaptive-", "JobClient.rescale() changes the parallelism of a job that runs."),
    ("jobmanager.", "the driver is Spark's; set spark.driver.memory and related options."),
    ("historyserver.", "a job manager lists jobs that have ended: jobstore.max-capacity."),
    ("jobstore.", "results of jobs are in the storage of their cluster; see jobstore.max-capacity."),
    ("python.client.executable", "the driver is the Python that runs the program."),
    ("python.pythonpath", "give modules to the workers with env.add_python_file(), or spark.submit.pyFiles."),
    ("python.systemenv.enabled", "set spark.executorEnv.*."),
    ("python.metric.enabled", "metrics of functions are always on; they cost nothing per element."),
    ("python.profile.enabled", "set spark.python.profile."),
    ("python.map-state.", "state is in the worker's memory or mapped into it, and is not fetched in parts."),
    ("python.state.cache-size", "state is in the worker's memory, or set state.backend.type to 'columnar'."),
    ("python.executable", "set spark.pyspark.python, which selects the Python of the workers."),
    ("python.archives", "give archives to the workers with spark.archives, or env.add_python_archive()."),
    (
        "python.requirements",
        "call env.set_python_requirements(), or name a packed environment in spark.archives.",
    ),
    ("pipeline.jars", "jars are for Spark's sources and sinks; set spark.jars."),
    ("pipeline.classpaths", "jars are for Spark's sources and sinks; set spark.jars."),
    ("pipeline.global-job-parameters", "set pipeline.global-job-parameters.<name> for each of them."),
    ("pipeline.vertex-description-mode", "`holdfast info` and the web page show the graph."),
    ("fs.default-scheme", "name the scheme in each path."),
    ("fs.", "paths are of a mounted file system, or s3://, for which there is s3.*."),
    ("pipeline.cached-files", "call env.spark.sparkContext.addFile()."),
    ("pipeline.generic-types", "elements without a declared type are pickled; declare output_type."),
    ("pipeline.serialization-config", "elements are not Java objects; declare output_type."),
    ("pipeline.force-", "elements are not Java objects; declare output_type."),
    ("pipeline.closure-cleaner-level", "functions are pickled with their closures."),
    ("pipeline.watermark-alignment.", "with_watermark_alignment() pauses a task's source as a whole, not its splits."),
    ("pipeline.jobvertex-parallelism-overrides", "set the parallelism by uid: holdfast rescale, JobClient.rescale()."),
    ("execution.target", "a job runs where its program is started: holdfast run, holdfast submit or spark-submit."),
    ("execution.attached", "execute() waits for the end of the job, execute_async() does not."),
    ("execution.shutdown-on-attached-exit", "a job ends with the program that runs it."),
    ("execution.batch-shuffle-mode", "exchanges are Spark's; set spark.shuffle.*."),
    ("execution.job-status-changed-listeners", "JobClient and REST report the status of a job."),
    ("table.", "there is no Table API; Spark SQL takes its place, with spark.sql.*."),
    ("classloader.", "there are no classes of Java to be loaded; jars for Spark's sources are in spark.jars."),
    ("env.java.", "the JVM is Spark's; set spark.driver.extraJavaOptions and spark.executor.extraJavaOptions."),
    ("io.tmp.dirs", "set spark.local.dir."),
    ("akka.", "processes communicate by Spark; set spark.rpc.* and spark.network.timeout."),
    ("pekko.", "processes communicate by Spark; set spark.rpc.* and spark.network.timeout."),
    ("heartbeat.", "executors are watched by Spark; set spark.executor.heartbeatInterval. See heartbeat.timeout."),
    ("slot", "there are no slots; set spark.executor.cores and spark.task.cpus."),
    ("cluster.", "the cluster is Spark's; set spark.master, and jobs are known by pipeline.job-id."),
    ("scheduler-mode", "tasks are scheduled by Spark; JobClient.rescale() changes the parallelism of a job that runs."),
    ("yarn.", "the cluster is Spark's; set spark.yarn.*."),
    ("security.kerberos.", "set spark.kerberos.*."),
    ("security.ssl.", "set rest.tls.* and queryable-state.tls.*, and spark.ssl.* for what Spark sends."),
    ("security.delegation.", "set spark.security.credentials.*."),
    ("zookeeper.sasl.", "set high-availability.zookeeper.client.authorization."),
    ("high-availability.use-old-", "there is only one implementation of these services."),
    ("high-availability.job.", "a new leader takes over the jobs at once."),
    ("kubernetes.", "the pods are Spark's; set spark.kubernetes.*."),
    ("containerized.", "the pods are Spark's; set spark.kubernetes.*."),
    ("external-resource", "set spark.executor.resource.* and spark.task.resource.*."),
    ("resourcemanager.", "executors are Spark's; set spark.dynamicAllocation.*."),
    ("task.cancellation.", "tasks are Spark's; set spark.task.reaper.*."),
    ("shuffle-service", "exchanges are Spark's; set spark.shuffle.*."),
    ("blob.", "submitted programs are stored under high-availability.storageDir."),
    ("deployment.", "a job runs where its program is started: holdfast run, holdfast submit or spark-submit."),
    ("env.", "the log goes to standard error; set HOLDFAST_LOG_LEVEL."),
    ("metrics.scope.", "names of metrics are fixed; see docs/metrics.md."),
    ("metrics.", "Prometheus reads /metrics at the REST port, and metrics.reporter.otel.* sends to OpenTelemetry."),
    ("traces.", "there are no spans; metrics.reporter.otel.* sends metrics."),
    ("events.", "REST lists what has happened to a job; metrics.reporter.otel.* sends metrics."),
    ("web.", "the web page is at the REST port; see rest.*."),
    ("rest.url-prefix", "paths begin at the root; a proxy in front can remove a prefix."),
    ("rest.await-leader-timeout", "commands wait up to 30 s for a leader."),
    ("rest.retry.", "commands send a request once; a request with a triggerId may be sent again."),
    ("rest.connection-timeout", "commands take --timeout where they wait."),
    ("rest.idleness-timeout", "an idle connection is closed after rest.server.request-timeout."),
    ("rest.client.", "commands read answers of any length; see rest.server.max-content-length."),
    ("rest.cache.", "REST reads the statistics of checkpoints from memory; nothing is cached."),
    ("rest.flamegraph.", "set spark.python.profile; the web page shows the busy time of each subtask."),
    ("rest.profiling.", "set spark.python.profile; the web page shows the busy time of each subtask."),
    ("client.timeout", "commands take --timeout where they wait."),
    ("client.", "a job manager runs a job whether its client stays or not; `holdfast submit` returns at once."),
    ("process.taskmanager.", "executors are Spark's; set spark.local.dir."),
    ("execution.submit-failed-job", "a program that fails before it executes a job is listed as FAILED."),
    ("execution.terminate-application", "a submitted program executes one job and ends with it."),
    ("user.artifacts.", "give files with --files, or modules with env.add_python_file()."),
    ("sql-gateway.", "there is no Table API; Spark SQL takes its place, with spark.sql.*."),
    ("local.", "set spark.master, such as local[4]."),
)
"""Options of Flink without a meaning here, by prefix, and what takes their place."""


def _unknown(key: str) -> str:
    if len(key) > _MAX_KEY_LENGTH:
        return f"Option {key!r:.100}... is unknown."
    known = sorted(all_keys())
    if not difflib.get_close_matches(key, known, cutoff=0.9):
        for prefix, instead in _FLINK_ALTERNATIVES:
            if key.startswith(prefix):
                return f"Option {key!r} has no meaning here: {instead}"
    nearest = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
    hint = f"Did you mean {' or '.join(map(repr, nearest))}?" if nearest else "No known option has a similar name."
    return f"Option {key!r} is unknown. {hint}"
