"""`holdfast doctor`: check what jobs need on this machine. It needs no network, and no pyspark."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from holdfast import __version__
from holdfast.checkpoint.options import CHECKPOINTS_DIRECTORY
from holdfast.cli.output import ENDED, FAILED, echo, errors_to_exit_codes, examples, print_json, size
from holdfast.cli.program import options_of
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import redacted_message
from holdfast.runtime.job.options import EXECUTION_TRIGGER, is_real_time_trigger
from holdfast.spark.java import ensure_java, java_version
from holdfast.storage.file_system import absolute, local_path, parent
from holdfast.storage.local import require_exclusive_creation
from holdfast.storage.object_store import use_s3_options
from holdfast.storage.scheme import file_system_for

OK: Final = "OK"
WARNING: Final = "warning"
PROBLEM: Final = "problem"

_REAL_TIME: Final = (4, 3)
_KAFKA_SOURCE: Final = (4, 2)
_NEWEST_JAVA: Final = (((4, 2), 25), ((4, 0), 21), ((0, 0), 17))
"""The newest Java that Spark's documentation names, from a version of Spark on."""
_STAGES: Final = 4
"""Stages of a real-time job whose tasks find slots with the default parallelism; `holdfast.spark.launch` has it too."""
_LITTLE_SPACE: Final = 256 << 20
_SOME_SPACE: Final = 2 << 30
_SKEW_SECONDS: Final = 2.0  # some file systems keep times in steps of two seconds
_WRONG_SECONDS: Final = 60.0
_EARLIEST: Final = 1_767_225_600.0  # 2026-01-01: no release is older
_STEP_SECONDS: Final = 0.5
_PROBE_SECONDS: Final = 60
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^]]*)\])?\s*([^;]*?)\s*(?:;\s*(.*))?")
_OF_EXTRA: Final = re.compile(r"""extra == ['"]([^'"]+)['"]""")
_WORKER: Final = """
import json, sys
found = {"python": list(sys.version_info[:3])}
try:
    import holdfast
    found["holdfast"] = holdfast.__version__
except ImportError as error:
    found["failure"] = str(error)
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        check: What was checked.
        status: `OK`, `WARNING` or `PROBLEM`.
        detail: The result.
        remedy: What to do; None if nothing is wrong.
    """

    check: str
    status: str
    detail: str
    remedy: str | None = None


@click.command(
    epilog=examples(
        "holdfast doctor",
        "holdfast doctor --checkpoint-dir /data/checkpoints -D spark.master=local[4]",
        "holdfast doctor -D execution.trigger=real-time --json",
    )
)
@click.option("--checkpoint-dir", metavar="DIR", help="Check this checkpoint directory. It may be in an object store.")
@click.option(
    "-D",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of a job, as for `holdfast run`: spark.master, spark.pyspark.python, execution.trigger, s3.*.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object a line, one for each check.")
def doctor(checkpoint_dir: str | None, properties: tuple[str, ...], as_json: bool) -> None:
    """Check what jobs need on this machine.

    Each line is OK, a warning or a problem, with what to do. The checks are: Python, pyspark, Java, the Python of the
    workers, the extras, the slots of Spark, the clock, the checkpoint directory and free disk space.

    Exit codes: 0 no problem; 1 a problem; 2 wrong usage.
    """
    with errors_to_exit_codes():
        options = options_of(properties)
        options.validate()
        use_s3_options(options)
        named = checkpoint_dir if checkpoint_dir is not None else options.get(CHECKPOINTS_DIRECTORY)
        found: list[Finding] = []
        for finding in findings(options, None if named is None else absolute(named)):
            found.append(finding)
            if not as_json:
                _print(finding)
        if as_json:
            print_json(asdict(finding) | {"status": finding.status.lower()} for finding in found)
        sys.exit(FAILED if any(finding.status == PROBLEM for finding in found) else ENDED)


def _print(finding: Finding) -> None:
    echo(f"{finding.status:<8} {finding.check + ':':<22} {finding.detail}")
    if finding.remedy is not None:
        echo(f"{'':<31} -> {finding.remedy}")


def findings(options: Configuration, checkpoint_dir: str | None) -> Iterator[Finding]:
    """Yield the results of all checks. Blocks.

    Args:
        options: The options of a job.
        checkpoint_dir: Its checkpoint directory, if it is known.
    """
    yield Finding("Holdfast", OK, f"{__version__} on Python {_text(sys.version_info[:3])}")
    is_real_time = is_real_time_trigger(options.get(EXECUTION_TRIGGER))
    yield check_spark(is_real_time=is_real_time)
    yield check_java(spark_version())
    yield check_worker_python(options)
    yield from check_extras()
    yield check_slots(_setting(options, "spark.master"), is_real_time=is_real_time)
    found = check_checkpoint_directory(checkpoint_dir)
    yield found
    for place in _places(None if found.status == PROBLEM else checkpoint_dir):
        yield check_clock(place)
        yield check_space(place)


# Spark, Java, Python.


def spark_version() -> tuple[int, ...] | None:
    """Return the version of the installed pyspark, without importing it; None if there is none."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    try:
        return _numbers(version("pyspark"))
    except PackageNotFoundError:  # the pyspark of a cluster, in a directory of PYTHONPATH
        text = Path(found.origin).with_name("version.py")
        match = re.search(r'"(\d[^"]*)"', text.read_text("utf-8")) if text.is_file() else None
        return _numbers(match[1]) if match else ()


def check_spark(*, is_real_time: bool = False) -> Finding:
    """Check that pyspark is installed, and that its version is supported."""
    found = spark_version()
    if found is None:
        return Finding(
            "pyspark",
            PROBLEM,
            "It is not installed. Jobs need it; queries and the test harness do not.",
            "pip install 'holdfast[spark]'. If the cluster brings Spark, use the cluster's Python.",
        )
    shown = _text(found) or "an unknown version"
    specifier = _specifier_of("pyspark")
    if found and not is_satisfied(found, specifier):
        return Finding(
            "pyspark",
            PROBLEM,
            f"{shown} is not supported.",
            f"Install a supported one: pip install 'pyspark{specifier}'.",
        )
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    if not Path(spec.origin).with_name("jars").is_dir() and not os.environ.get("SPARK_HOME"):
        return Finding(
            "pyspark",
            PROBLEM,
            f"{shown} has no jars: it is a client of Spark Connect, on which Holdfast does not run.",
            "pip install 'holdfast[spark]', or set SPARK_HOME to a Spark installation.",
        )
    other = _version_of_jars(os.environ.get("SPARK_HOME"))
    if found and other and other[:2] != found[:2]:
        return Finding(
            "pyspark",
            PROBLEM,
            f"{shown} starts Spark {_text(other)}, which SPARK_HOME={os.environ['SPARK_HOME']} names.",
            f"Unset SPARK_HOME, or pip install pyspark=={_text(other)}.",
        )
    if found and found < _REAL_TIME:
        newer = f"Real-time jobs need {_text(_REAL_TIME)}"
        if is_real_time:
            return Finding("pyspark", PROBLEM, f"{shown} has no real-time jobs.", f"{newer}: pip install -U pyspark.")
        kafka = f", KafkaSource needs {_text(_KAFKA_SOURCE)}" if found < _KAFKA_SOURCE else ""
        return Finding("pyspark", OK, f"{shown}. {newer}{kafka}.")
    return Finding("pyspark", OK, shown)


def _version_of_jars(home: str | None) -> tuple[int, ...]:
    """Return the version of the Spark in a directory; empty if there is none."""
    names = [] if not home else [path.name for path in Path(home, "jars").glob("spark-core_*.jar")]
    return _numbers(names[0].split("-")[2]) if names else ()


def check_java(spark: Sequence[int] | None) -> Finding:
    """Check that there is a Java on which Spark runs.

    Args:
        spark: The version of Spark, if it is known.
    """
    environment = dict(os.environ)
    try:
        home = ensure_java(environment)
    except ConfigurationError as error:
        what, _, remedy = str(error).partition(": ")
        return Finding("Java", PROBLEM, f"{what}.", remedy[:1].upper() + remedy[1:])
    found = java_version(home / "bin" / "java")
    shown = f"{found} in {home}"
    named = os.environ.get("JAVA_HOME")
    if named and Path(named) != home:
        return Finding(
            "Java",
            WARNING,
            f"JAVA_HOME={named} has no Java 17 or newer. Holdfast uses {shown}; other programs fail.",
            f"Set JAVA_HOME={home}.",
        )
    newest = next(java for since, java in _NEWEST_JAVA if tuple(spark or (99,))[:2] >= since)
    if spark and found is not None and found > newest:
        return Finding(
            "Java",
            WARNING,
            f"{shown} is newer than the documentation of Spark {_text(spark[:2])} names ({newest}).",
            f"If Spark does not start, install Java {newest} and set JAVA_HOME to it.",
        )
    return Finding("Java", OK, shown)


def check_worker_python(options: Configuration) -> Finding:
    """Check the Python that Spark starts for its workers."""
    check = "Python of the workers"
    origin, name = "the Python of the driver", sys.executable
    for place, value in (
        ("spark.pyspark.python", _setting(options, "spark.pyspark.python")),
        ("PYSPARK_PYTHON", os.environ.get("PYSPARK_PYTHON")),
    ):
        if value:
            origin, name = f"{place}={value}", value
            break
    found = shutil.which(name)
    if found is None:
        if not Path(name).is_absolute() and _setting(options, "spark.archives"):
            return Finding(
                check, WARNING, f"{origin} is in spark.archives and cannot be checked here.", "Check it on an executor."
            )
        return Finding(
            check,
            PROBLEM,
            f"{origin} does not exist or is not executable.",
            f"Set PYSPARK_PYTHON={sys.executable}, or unset it.",
        )
    try:
        done = subprocess.run(
            [found, "-c", _WORKER], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True
        )
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return Finding(
            check,
            PROBLEM,
            f"{origin} does not run as a Python: {error!s:.300}",
            f"Set PYSPARK_PYTHON={sys.executable}.",
        )
    shown = f"{_text(answer['python'])} in {found}"
    if tuple(answer["python"][:2]) != sys.version_info[:2]:
        return Finding(
            check,
            PROBLEM,
            f"{shown} ({origin}) has another minor version than the driver, Python {_text(sys.version_info[:2])}. "
            "Spark refuses that.",
            f"Set PYSPARK_PYTHON={sys.executable}, or run the driver with {found}.",
        )
    if answer.get("holdfast") != __version__:
        has = f"has Holdfast {answer['holdfast']}, not" if "holdfast" in answer else "cannot import Holdfast"
        return Finding(
            check,
            PROBLEM,
            f"{shown} ({origin}) {has} {__version__}." + (f" {answer['failure']:.200}" if "failure" in answer else ""),
            f"{found} -m pip install holdfast=={__version__}, or set PYSPARK_PYTHON={sys.executable}.",
        )
    is_local = (_setting(options, "spark.master") or "local").startswith("local")
    return Finding(check, OK, shown + ("" if is_local else ". The executors need the same; they were not checked."))


# Extras.


def check_extras() -> Iterator[Finding]:
    """Check which extras of Holdfast are installed."""
    try:
        extras = metadata("holdfast").get_all("Provides-Extra") or ()
        wanted = [name for name in extras if name not in ("dev", "docs", "spark")]
    except PackageNotFoundError:
        yield Finding(
            "extras",
            WARNING,
            "Holdfast was not installed by pip, so its extras are not known.",
            "pip install holdfast, if a job needs packages for Kafka, S3 or others.",
        )
        return
    for extra in sorted(wanted):
        check, install = f"extra {extra}", f"pip install 'holdfast[{extra}]'"
        packages = [(name, *state) for name, *state in _packages("holdfast", extra)]
        missing = [name for name, found, _ in packages if found is None]
        old = [f"{name} {found} (needs {specifier})" for name, found, specifier in packages if found and specifier]
        if missing:
            yield Finding(check, OK, f"not installed. If a job needs it: {install}")
        elif old:
            yield Finding(check, WARNING, f"installed, but too old: {', '.join(old)}", f"{install} --upgrade")
        else:
            yield Finding(check, OK, "installed")


def _packages(distribution: str, extra: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield the packages of an extra: name, installed version if any, and the range that it is not in, if so."""
    for text in requires(distribution) or ():
        match = _REQUIREMENT.fullmatch(text)
        marker = _OF_EXTRA.fullmatch(match[4] or "") if match else None
        if match is None or marker is None or _folded(marker[1]) != _folded(extra):
            continue  # also those for other versions of Python, of nested extras
        name, nested, specifier, _ = match.groups()
        try:
            found = version(name)
        except PackageNotFoundError:
            yield name, None, ""
            continue
        yield name, found, "" if is_satisfied(_numbers(found), specifier) else specifier
        for other in (nested or "").split(","):
            if other.strip():
                yield from _packages(name, other.strip())


def _specifier_of(package: str) -> str:
    """Return the versions of a package that Holdfast supports; empty if it was not installed by pip."""
    try:
        matches = [_REQUIREMENT.fullmatch(text) for text in requires("holdfast") or ()]
    except PackageNotFoundError:
        return ""
    return next((match[3] for match in matches if match and match[1] == package), "")


def is_satisfied(found: Sequence[int], specifier: str) -> bool:
    """Return whether a version is in a range of `>=`, `<` and `==`."""
    for part in filter(None, (part.strip() for part in specifier.split(","))):
        operator = part.rstrip("0123456789.*abrc")
        bound = _numbers(part[len(operator) :])
        padded = tuple(found) + (0,) * (len(bound) - len(found))
        fits = {">=": padded >= bound, "<": padded < bound, "==": padded[: len(bound)] == bound}
        if not fits.get(operator.strip(), True):
            return False
    return True


def _folded(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


# Slots.


def check_slots(master: str | None, *, is_real_time: bool) -> Finding:
    """Check how many tasks run at once.

    Args:
        master: The value of spark.master, if it is set.
        is_real_time: Whether the job runs in real time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    needed = "A real-time job needs a slot for each task of each stage at once (one in all with parallelism.default 1)"
    if master is None:
        more = f" {needed}: Holdfast gives it at least 8, and 4 for each core." if is_real_time else ""
        return Finding("slots", OK, f"{cores}, one for each core (spark.master is not set).{more}")
    match = re.fullmatch(r"local(?:\[(\d+|\*)(?:, ?\d+)?\])?", master)
    if match is None:
        more = f" {needed}." if is_real_time else ""
        return Finding("slots", OK, f"spark.master={master}: the slots of the cluster are not checked.{more}")
    slots = 1 if match[1] is None else cores if match[1] == "*" else int(match[1])
    shown = f"{slots} with spark.master={master}, {cores} cores."
    if slots < 1:
        return Finding("slots", PROBLEM, shown, "Use spark.master=local[*].")
    if is_real_time and slots < _STAGES:
        return Finding(
            "slots",
            WARNING,
            f"{shown} {needed}.",
            f"Leave out spark.master, or use at least local[{2 * _STAGES}].",
        )
    return Finding("slots", OK, shown + (f" {needed}." if is_real_time else ""))


# Storage and clock.


def check_checkpoint_directory(directory: str | None) -> Finding:
    """Check that a directory can be written, and that a file in it can be created only once.

    Args:
        directory: A path or URI; None if the job has none.
    """
    check = "checkpoint directory"
    if directory is None:
        return Finding(
            check,
            WARNING,
            "None is named. Checkpoints in a temporary directory are lost with the process.",
            "Check yours with --checkpoint-dir DIR, and set it in jobs as execution.checkpointing.dir.",
        )
    place, local = directory, local_path(directory)
    try:
        fs = file_system_for(directory)
        if local is not None:
            place = str(_existing(local))
        require_exclusive_creation(fs, place)
    except (HoldfastError, OSError) as error:
        what, _, remedy = redacted_message(error).partition(". ")
        return Finding(check, PROBLEM, f"{what.rstrip('.')}.", remedy or "Choose a directory that this user can write.")
    if local is not None and Path(place) != Path(local):
        return Finding(
            check,
            WARNING,
            f"{directory} does not exist. A job creates it in {place}, which can be written.",
            "Create it now, so that a file system that is not mounted is noticed.",
        )
    return Finding(check, OK, f"{directory} can be written, and keeps two drivers apart.")


def check_clock(directory: Path) -> Finding:
    """Check the clock of this machine against that of a directory's file system, and that it does not jump."""
    check = "clock"
    remedy = "Synchronise the clocks of all hosts, for example with chrony or systemd-timesyncd."
    now = time.time()
    if now < _EARLIEST:
        return Finding(check, PROBLEM, f"It shows {time.strftime('%Y-%m-%d', time.gmtime(now))}.", remedy)
    step = min((_clock_step() for _ in range(3)), key=abs)
    if abs(step) > _STEP_SECONDS:
        return Finding(check, WARNING, f"It jumped by {step:.1f} s during the check.", remedy)
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".holdfast-clock-") as file:
            before = time.time()
            file.write(b"the time")
            file.flush()
            os.fsync(file.fileno())
            written, after = Path(file.name).stat().st_mtime, time.time()
    except OSError as error:
        return Finding(
            check,
            WARNING,
            f"It cannot be compared with that of {directory}: {error.strerror or error}.",
            "Make the directory writable.",
        )
    skew = written - after if written > after else min(0.0, written - before)
    if abs(skew) > _SKEW_SECONDS:
        status = PROBLEM if abs(skew) > _WRONG_SECONDS else WARNING
        return Finding(check, status, f"The file system of {directory} is {abs(skew):.0f} s {_side(skew)}.", remedy)
    return Finding(check, OK, f"It agrees with the file system of {directory}.")


def _clock_step() -> float:
    """Return by how many seconds the wall clock moved more than the monotonic one in a tenth of a second."""
    monotonic, wall = time.monotonic(), time.time()
    time.sleep(0.1)
    return (time.time() - wall) - (time.monotonic() - monotonic)


def _side(skew: float) -> str:
    return "ahead" if skew > 0 else "behind"


def check_space(directory: Path) -> Finding:
    """Check the free space of a directory's file system."""
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return Finding("free space", WARNING, f"{directory}: {error.strerror or error}.", "Check the mount.")
    shown = f"{size(free)} in {directory}"
    if free >= _SOME_SPACE:
        return Finding("free space", OK, shown)
    status = PROBLEM if free < _LITTLE_SPACE else WARNING
    return Finding("free space", status, f"only {shown}", "Free space there, or use another directory.")


def _places(checkpoint_dir: str | None) -> list[Path]:
    """Return the local directories that a job writes to: the temporary one, and that of checkpoints."""
    found = [Path(tempfile.gettempdir())]
    local = None if checkpoint_dir is None else local_path(checkpoint_dir)
    if local is not None:
        found.append(_existing(local))
    return found


def _existing(local: str) -> Path:
    """Return a path, or the nearest directory above it that exists."""
    while not Path(local).exists() and parent(local) != local:
        local = parent(local)
    return Path(local)


def _setting(options: Configuration, key: str) -> str | None:
    """Return a setting of Spark, which is no option of Holdfast."""
    return options.to_texts().get(key)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def _text(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))
