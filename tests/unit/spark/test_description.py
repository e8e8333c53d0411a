"""How a checkpoint names the place of an input: without secrets, and so that the same place is known again."""

from typing import Any

import pytest

from holdfast.runtime.graph.input_matching import InputLeaf, InputRules, match_inputs
from holdfast.spark.input.description import _place

SESSION: Any = None
"""Of Spark; only paths are asked of it."""


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("jdbc:postgresql://me:secret@host/db?password=secret", "jdbc:postgresql://host/db"),
        ("jdbc:postgresql://me:se@cret@host/db", "jdbc:postgresql://host/db"),
        ("jdbc:postgresql://me@host/db", "jdbc:postgresql://host/db"),
        ("https://me:se/cret@host/x", "https://host/x"),
        ("jdbc:oracle:thin:scott/tiger@host:1521:x", "jdbc:oracle:thin:******@host:1521:x"),
        ("jdbc:sqlserver://host:1433;user=me;password=p@q", "jdbc:sqlserver://host:1433"),
    ],
)
def test_a_described_url_has_no_user_and_no_password(url: str, wanted: str) -> None:
    assert _place("url", url, SESSION) == wanted


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("url", "jdbc:postgresql://db.example:5432/db"),
        ("url", "https://me.example/a@b"),
        ("paths", "s3://bucket/day=1/token=a,abfss://container@account.dfs.core.windows.net/x,file:/a@b/c"),
        ("topic", "user@host"),
        ("dbtable", "public.tokens"),
    ],
)
def test_places_without_them_are_told_as_ever(key: str, place: str) -> None:
    assert _place(key, place, SESSION) == place


@pytest.mark.parametrize(
    ("before", "url"),
    [
        ("jdbc:postgresql://host/db", "jdbc:postgresql://me:new@host/db"),
        ("jdbc:postgresql://cret@host/db", "jdbc:postgresql://me:se@cret@host/db"),
        ("jdbc:postgresql://me@host/db", "jdbc:postgresql://me@host/db"),
        ("https://me:se/cret@host/x", "https://me:se/cret@host/x"),
        ("jdbc:oracle:thin:scott/tiger@host:1521:x", "jdbc:oracle:thin:scott/new@host:1521:x"),
    ],
)
def test_a_checkpoint_that_told_more_knows_the_same_input(before: str, url: str) -> None:
    """Older ones left parts of users and passwords in the words."""
    old = InputLeaf("in", 0, f"jdbc of url {before!r}", "struct<v:string>")
    new = InputLeaf("in", 0, f"jdbc of url {_place('url', url, SESSION)!r}", "struct<v:string>")
    assert match_inputs([old], [new], InputRules()).origin(new) == old
    assert "cret" not in str(old) and "tiger" not in str(old)
