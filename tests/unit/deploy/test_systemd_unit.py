"""The systemd unit: systemd takes it, and what it starts is a job manager that SIGTERM ends."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import signal
import string
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.cluster import until
from tests.stories.process import ROOT

UNIT = ROOT / "deploy/systemd/holdfast-jobmanager.service"
INSTALLED = "/opt/holdfast/bin/holdfast"

pytestmark = pytest.mark.timeout(120)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_it(tmp_path: Path) -> None:
    text = UNIT.read_text()
    assert INSTALLED in text
    (tmp_path / UNIT.name).write_text(text.replace(INSTALLED, "/bin/true").replace("User=holdfast", "User=root"))
    found = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / UNIT.name], capture_output=True, text=True, check=False
    )
    of_the_unit = [line for line in (found.stdout + found.stderr).splitlines() if UNIT.name in line]
    assert of_the_unit == [], "units of this machine may be wrong, ours is not"


def test_what_it_starts_leads_until_sigterm(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    assert service["KillMode"] == "mixed", "SIGTERM is for the job manager, which ends its jobs after their epochs"
    options = f"-Dhigh-availability.type=filesystem -Dhigh-availability.storageDir={tmp_path / 'ha'}"
    line = string.Template(service["ExecStart"]).substitute(HOLDFAST_OPTIONS=options)
    line = line.replace(INSTALLED, str(Path(sys.executable).with_name("holdfast")))
    line = line.replace("/var/lib/holdfast", str(tmp_path / "state"))
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            shlex.split(line),
            stdout=output,
            stderr=output,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    try:
        until(lambda: "leads, in session" in log.read_text() or process.poll() is not None, "it leads")
        assert (tmp_path / "state/jobmanager/lock").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
