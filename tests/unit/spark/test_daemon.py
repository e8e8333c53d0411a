"""Where the daemon of real-time workers imports PySpark from: Spark puts a zip file in front of it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark

from tests.stories.process import ROOT

INSTALLED = Path(pyspark.__file__).parent


def imported_from(*path: Path) -> str:
    """The file of PySpark in a daemon whose path begins with these."""
    program = "import holdfast.spark.daemon, pyspark; print(pyspark.__file__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT / "src"]))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def archive(place: Path, version: str) -> Path:
    """A zip file with the modules of PySpark, which says that it has this version."""
    path = place / "pyspark.zip"
    with zipfile.ZipFile(INSTALLED / "python" / "lib" / "pyspark.zip") as own, zipfile.ZipFile(path, "w") as other:
        for name in own.namelist():
            other.writestr(name, own.read(name) if name != "pyspark/version.py" else f"__version__ = {version!r}\n")
    return path


def test_the_directory_is_preferred_to_a_zip_file_of_the_same_version() -> None:
    assert imported_from(INSTALLED / "python" / "lib" / "pyspark.zip") == str(INSTALLED / "__init__.py")


def test_a_zip_file_of_another_version_stays_in_front(tmp_path: Path) -> None:
    other = archive(tmp_path, "9.9.9")
    assert imported_from(other) == str(other / "pyspark" / "__init__.py")


def test_a_zip_file_that_is_missing_or_broken_is_left_to_python(tmp_path: Path) -> None:
    (tmp_path / "pyspark.zip").write_text("no zip file")
    for path in (tmp_path / "pyspark.zip", tmp_path / "missing" / "pyspark.zip"):
        assert imported_from(path) == str(INSTALLED / "__init__.py")
