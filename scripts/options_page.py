"""Writes docs/options.md from the options that the package registers.

    python scripts/options_page.py [--check]

With --check nothing is written; the exit code says whether the page is current.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import holdfast
from holdfast.kernel.configuration import (
    ConfigOption,
    DurationType,
    HarmlessOption,
    MemorySize,
    RefusedOption,
    all_options,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"

INTRODUCTION = """\
# Options

This page is generated from the code: `python scripts/options_page.py`. A test checks that it is current.

Set options in the `Configuration` (or a plain dict) that you pass to `get_execution_environment`, or on the command
line with `holdfast run -D key=value`. The command line overrides the program, and the log lists the replaced values. An
unknown option raises an error with the nearest known names. Two kinds of names are free:

- `pipeline.global-job-parameters.<name>`: functions read it with `RuntimeContext.get_job_parameter`.
- `spark.<name>`: a setting of the session that Holdfast creates.

Write durations as `10 s`, `100 ms`, `1.5 h` or a number of milliseconds. Write sizes as `64 mb` or a number of bytes; a
kilobyte has 1024 bytes. All of Flink's units work. The older names in the third column work too.
"""

GROUPS = (
    ("The job", ("pipeline.", "parallelism.", "execution.trigger", "execution.runtime-mode", "python."), ""),
    ("Checkpoints and recovery", ("execution.checkpointing.", "execution.state-recovery.", "web.checkpoints."), ""),
    ("Restarts", ("restart-strategy.",), ""),
    (
        "REST",
        ("rest.", "web.exception-history-size"),
        "The interface by which other processes control a running job.",
    ),
    ("The job manager", ("jobmanager.", "jobstore.", "process."), ""),
    ("State and sinks", ("state.", "sink."), ""),
    ("Queryable state", ("queryable-state.",), "Servers that answer queries."),
    (
        "High availability",
        (
            "high-availability.",
            "kubernetes.",
            "job-result-store.",
            "application-result-store.",
            "cleanup-strategy.",
        ),
        "The services in `holdfast.ha`.",
    ),
    ("Object stores", ("s3.",), "Stores of `s3://` URIs. A process has one set of these options."),
    ("Other", ("",), ""),
)


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(description="Write docs/options.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is not current")
    check = parser.parse_args(arguments).check
    text = page()
    if check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """The page as it should be."""
    import_everything()
    options = sorted(all_options().values(), key=lambda option: option.key)
    acting = [option for option in options if not isinstance(option, HarmlessOption | RefusedOption)]
    parts = [INTRODUCTION]
    for title, prefixes, note in GROUPS:
        members = [option for option in acting if option.key.startswith(prefixes)]
        acting = [option for option in acting if option not in members]
        if members:
            parts.append(f"## {title}\n" + (f"\n{note}\n" if note else ""))
            parts.append(table(("option", "default", "older names", "what it does"), map(acting_row, members)))
    parts.append(
        "## Accepted without effect\n\nPrograms written for Flink may set these options. They have no effect here.\n"
    )
    harmless = [option for option in options if isinstance(option, HarmlessOption)]
    parts.append(table(("option", "older names", "why it has no effect"), map(reason_row, harmless)))
    parts.append(
        "## Rejected\n\nThese options have no meaning here. Any value other than the default raises an error with\n"
        "the reason.\n"
    )
    refused = [option for option in options if isinstance(option, RefusedOption)]
    parts.append(table(("option", "older names", "why it is rejected"), map(reason_row, refused)))
    return "\n".join(parts)


def import_everything() -> None:
    """Imports all modules but the test tools, so that all options are registered."""
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.startswith("holdfast.testing"):
            importlib.import_module(module.name)


def acting_row(option: ConfigOption[Any]) -> tuple[str, ...]:
    """An option that acts."""
    return code(option.key), default(option), names(option), option.description


def reason_row(option: HarmlessOption[Any] | RefusedOption[Any]) -> tuple[str, ...]:
    """An option that does not act, and why."""
    reason = option.reason[:1].upper() + option.reason[1:]
    return code(option.key), names(option), reason


def names(option: ConfigOption[Any]) -> str:
    """The older names of an option, and the options that are asked when it is not set."""
    fallbacks = [f"else {code(key)}" for key in option.fallback_keys]
    return ", ".join([*map(code, option.deprecated_keys), *fallbacks])


def default(option: ConfigOption[Any]) -> str:
    """The default as one would write it."""
    value = option.default
    if value is None:
        return "not set"
    if option.type is DurationType:
        return code(duration(value))
    if option.type is MemorySize:
        return code(size(value))
    if isinstance(value, Enum):
        return code(value.name)
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(str(value)) if value != "" else "empty"


def duration(milliseconds: int) -> str:
    """A length of time in its largest whole unit."""
    for unit, length in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % length == 0:
            return f"{milliseconds // length} {unit}"
    return f"{milliseconds} ms"


def size(count: int) -> str:
    """A size in its largest whole unit."""
    for unit, length in (("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)):
        if count and count % length == 0:
            return f"{count // length} {unit}"
    return f"{count} bytes"


def code(text: str) -> str:
    """Text as code."""
    return f"`{text}`"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    return "\n".join(_lines(head, rows)) + "\n"


def _lines(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"


if __name__ == "__main__":
    sys.exit(main())
