"""The log of a program that says nothing about logging, and how little it does to one that does."""

import os
import subprocess
import sys

import pytest

JOB = """
import logging, sys
{before}
from holdfast.kernel.default_log import install_default_handler
install_default_handler()
install_default_handler()
log = logging.getLogger("holdfast.runtime.master.job_master")
log.debug("it says much")
log.info("the job began")
{between}
log.warning("the job restarts")
logging.getLogger("somebody.else").info("something else")
print(logging.getLogger().level, len(logging.getLogger().handlers))
"""


def said(before="", between="", level=None):
    """What a program writes on standard error, line by line, and what it knows of its root logger."""
    environment = {k: v for k, v in os.environ.items() if k != "HOLDFAST_LOG_LEVEL"}
    if level is not None:
        environment["HOLDFAST_LOG_LEVEL"] = level
    program = JOB.format(before=before, between=between)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stderr.splitlines(), done.stdout.split()


def test_a_program_that_configures_nothing_sees_each_line_once_with_its_time():
    lines, root = said()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "INFO holdfast.runtime.master.job_master: the job began",
        "WARNING holdfast.runtime.master.job_master: the job restarts",
    ]
    assert root == ["30", "0"], "the root logger is as Python leaves it"


@pytest.mark.parametrize(("before", "expected"), [
    ("logging.basicConfig(format='%(message)s')", ["the job restarts"]),
    ("logging.basicConfig(level='INFO', format='mine: %(message)s')",
     ["mine: the job began", "mine: the job restarts", "mine: something else"]),
    ("logging.getLogger('holdfast').setLevel('ERROR')", []),
    ("logging.getLogger('holdfast').addHandler(logging.NullHandler())", []),
    ("logging.getLogger('holdfast.progress').setLevel('INFO')", ["the job restarts"]),
    ("logging.disable()", []),
])  # fmt: skip
def test_a_program_that_configures_anything_sees_what_it_asked_for_and_no_more(before, expected):
    assert said(before)[0] == expected


def test_a_program_that_configures_its_logging_later_has_no_line_twice():
    lines, _ = said(between="logging.basicConfig(level='INFO', format='mine: %(message)s')")
    assert lines[0].endswith("INFO holdfast.runtime.master.job_master: the job began")
    assert lines[1:] == ["mine: the job restarts", "mine: something else"]


def test_the_level_is_that_of_the_command():
    assert len(said(level="DEBUG")[0]) == 3
    assert [line.rsplit(" ", 3)[-3:] for line in said(level="warning")[0]] == [["the", "job", "restarts"]]
    assert "HOLDFAST_LOG_LEVEL: 'LOUD' is not one of DEBUG" in said(level="loud")[0][-1]
