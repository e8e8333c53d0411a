"""Build a release into `dist/`: a source archive, a wheel and an SBOM, after all checks. It uploads nothing.

    make release

The files depend on the commit only: their times are that of the commit, and a second build from an export of the commit
must give the same bytes. The wheel is installed in new environments of the oldest and the newest Python, where the
program of the README and the example of the test harness must run. The SBOM (CycloneDX) lists the wheel's dependencies
without extras, in their newest versions of the day.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
UV: Final = Path(sys.executable).with_name("uv")
WHEEL_TESTS: Final = "tests/spark/test_installed_wheel_stories.py"
_VERSION: Final = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


class ReleaseError(Exception):
    """A release cannot be built from this tree; the message says why, and what to do."""


def main() -> int:
    """Check the tree, build, check the files, and put them into `dist/`."""
    try:
        version = version_to_release(ROOT)
        with tempfile.TemporaryDirectory(prefix="holdfast-release-") as scratch:
            files = release(version, Path(scratch))
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"release: this command ended with {error.returncode}: {' '.join(error.cmd)}\n")
        return 1
    for file in files:
        sys.stdout.write(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(ROOT)}\n")
    return 0


def version_to_release(root: Path) -> str:
    """Return the version in the source, if this tree can become its release.

    Raises:
        ReleaseError: There are uncommitted changes, the changelog has no section for the version, the version's tag is
            at another commit, or the commit has the tag and the section has no date.
    """
    changes = git(root, "status", "--porcelain")
    if changes:
        raise ReleaseError(f"the tree has changes that are not committed; commit or remove them:\n{changes}")
    found = _VERSION.search((root / "src" / "holdfast" / "__init__.py").read_text(encoding="utf-8"))
    if found is None:
        raise ReleaseError('src/holdfast/__init__.py has no line like __version__ = "1.2.3"; add it')
    version = found[1]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## \[{re.escape(version)}\] - (unreleased|\d{{4}}-\d\d-\d\d)$", changelog, re.MULTILINE)
    if section is None:
        raise ReleaseError(f"CHANGELOG.md has no section '## [{version}] - DATE' or '- unreleased'; write it")
    tagged = git(root, "for-each-ref", "--format=%(objectname) %(*objectname)", f"refs/tags/v{version}").split()
    if tagged and tagged[-1] != git(root, "rev-parse", "HEAD"):
        raise ReleaseError(
            f"the tag v{version} exists at another commit, {tagged[-1][:12]}; raise __version__ in "
            "src/holdfast/__init__.py, a released version does not change"
        )
    if tagged and section[1] == "unreleased":
        raise ReleaseError(f"the section of {version} in CHANGELOG.md has no date; write it before you tag the commit")
    return version


def release(version: str, scratch: Path) -> list[Path]:
    """Build and check the files of a version; return those in `dist/`."""
    epoch = git(ROOT, "log", "-1", "--format=%ct")
    files = build(ROOT, scratch / "files", epoch)
    export = scratch / "export"
    export.mkdir()
    run("git", "archive", "--output", scratch / "export.tar", "HEAD")
    run("tar", "-xf", scratch / "export.tar", "-C", export)
    for again in build(export, scratch / "again", epoch):
        if again.read_bytes() != (scratch / "files" / again.name).read_bytes():
            raise ReleaseError(f"{again.name} differs between two builds of one commit; find out what it depends on")
    [wheel] = (file for file in files if file.suffix == ".whl")

    tools = environment(scratch / "tools", "--require-hashes", "-r", ROOT / "requirements-release.lock")
    run(tools / "twine", "check", "--strict", *files)
    run(tools / "check-wheel-contents", wheel)
    run(
        *(sys.executable, "-m", "pytest", WHEEL_TESTS, "-m", "not soak", "-p", "no:cacheprovider"),
        HOLDFAST_WHEEL=str(wheel),
        CI="1",  # a Python that is missing fails them
    )
    files.append(sbom(version, wheel, tools, epoch, scratch))

    target = ROOT / "dist"
    target.mkdir(exist_ok=True)
    for former in target.glob("holdfast-*"):
        former.unlink()
    return [Path(shutil.copy(file, target)) for file in files]


def build(tree: Path, target: Path, epoch: str) -> list[Path]:
    """Build a source archive of a tree, and a wheel from that, with the pinned build tool."""
    run(
        *(UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", target, tree),
        SOURCE_DATE_EPOCH=epoch,
    )
    return sorted(target.glob("holdfast-*"))


def sbom(version: str, wheel: Path, tools: Path, epoch: str, scratch: Path) -> Path:
    """Write the SBOM of an environment with the wheel alone."""
    core = environment(scratch / "core", wheel)
    # The tool reads the version of the wheel there, and not where the build tool finds it.
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    static = scratch / "pyproject.toml"
    static.write_text(project.replace('dynamic = ["version"]', f'version = "{version}"', 1), encoding="utf-8")
    target = wheel.with_name(f"holdfast-{version}.cdx.json")
    run(
        *(tools / "cyclonedx-py", "environment", core / "python", "--pyproject", static, "--mc-type", "library"),
        *("--output-reproducible", "--output-format", "JSON", "--validate", "--output-file", target),
        SOURCE_DATE_EPOCH=epoch,
    )
    return target


def environment(place: Path, *wanted: str | Path) -> Path:
    """Make a virtual environment with some packages; return the directory of its programs."""
    run(UV, "venv", "--quiet", "--no-project", "--python", sys.executable, place)
    run(UV, "pip", "install", "--quiet", "--python", place, *wanted)
    return place / "bin"


def run(*command: str | Path, **variables: str) -> None:
    """Run a command in the root of the repository; it must succeed."""
    words = [str(word) for word in command]
    sys.stdout.write(f"release: {' '.join(words)}\n")
    sys.stdout.flush()
    subprocess.run(words, cwd=ROOT, env={**os.environ, **variables}, check=True)


def git(root: Path, *command: str) -> str:
    """Return what a command of git prints."""
    return subprocess.run(["git", *command], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
