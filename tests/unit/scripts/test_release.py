"""What `make release` refuses: it builds the version of one commit, and a version is released once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.release import ReleaseError, version_to_release

CHANGELOG = "# Changelog\n\n## [1.2.0] - {date}\n\n- A sink.\n\n## [1.1.0] - 2026-01-01\n\n- The first.\n"


def git(tree: Path, *command: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *name, *command], cwd=tree, check=True, capture_output=True)


def commit(tree: Path, *, version: str = "1.2.0", date: str = "unreleased") -> None:
    (tree / "src" / "holdfast" / "__init__.py").write_text(f'"""A package."""\n\n__version__ = "{version}"\n')
    (tree / "CHANGELOG.md").write_text(CHANGELOG.format(date=date))
    git(tree, "add", ".")
    git(tree, "commit", "--message", "Change", "--allow-empty")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src" / "holdfast").mkdir(parents=True)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def test_the_version_of_the_commit_is_built_before_and_after_its_tag(tree: Path) -> None:
    assert version_to_release(tree) == "1.2.0"
    commit(tree, date="2026-02-03")
    git(tree, "tag", "--annotate", "--message", "1.2.0", "v1.2.0")
    assert version_to_release(tree) == "1.2.0"


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
def test_changes_that_are_not_committed_are_named(tree: Path, name: str) -> None:
    (tree / name).write_text("changed")
    with pytest.raises(ReleaseError, match=f"(?s)not committed; commit or remove them.*{name}"):
        version_to_release(tree)


def test_a_version_needs_its_section_of_the_changelog(tree: Path) -> None:
    commit(tree, version="1.3.0")
    with pytest.raises(ReleaseError, match=r"CHANGELOG.md has no section '## \[1.3.0\] - DATE'"):
        version_to_release(tree)
    commit(tree, date="soon")
    with pytest.raises(ReleaseError, match=r"no section '## \[1.2.0\]"):
        version_to_release(tree)


@pytest.mark.parametrize("kind", [(), ("--annotate", "--message", "1.1.0")])
def test_a_version_that_was_tagged_does_not_change(tree: Path, kind: tuple[str, ...]) -> None:
    git(tree, "tag", *kind, "v1.1.0")
    commit(tree, version="1.1.0")
    with pytest.raises(ReleaseError, match=r"the tag v1.1.0 exists at another commit, [0-9a-f]{12}; raise __version__"):
        version_to_release(tree)


def test_a_tagged_version_has_a_date(tree: Path) -> None:
    git(tree, "tag", "v1.2.0")
    with pytest.raises(ReleaseError, match=r"section of 1.2.0 in CHANGELOG.md has no date"):
        version_to_release(tree)


def test_a_source_without_a_version_is_refused(tree: Path) -> None:
    (tree / "src" / "holdfast" / "__init__.py").write_text("")
    git(tree, "commit", "--all", "--message", "Forget it")
    with pytest.raises(ReleaseError, match=r"no line like __version__"):
        version_to_release(tree)
