"""Every name in the seed documents exists, in Python's spelling, in the package where `contracts/names.md` puts it.

`seed_names.txt` is the list, made from the documents by `seed_extraction.py`; where the documents are at hand, the
list is compared with them.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import CheckpointError, CheckpointException, CheckpointFailureReason
from tests.unit.seed_extraction import names_in

HERE = Path(__file__).parent
SEEDS = HERE.parents[2] / "shared" / "seeds"

PENDING: dict[str, str] = {}
"""Packages, or single names, that another issue brings; each must fail until then."""


def listed() -> list[tuple[str, str]]:
    """Package and name of each line."""
    lines = (HERE / "seed_names.txt").read_text(encoding="utf-8").splitlines()
    return [(package, name) for package, name in (line.split(" ", 1) for line in lines if line)]


def _marked() -> list[Any]:
    cases = []
    for package, name in listed():
        reason = PENDING.get(package) or PENDING.get(f"{package} {name}")
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
        cases.append(pytest.param(package, name, id=f"{package} {name}", marks=marks))
    return cases


@pytest.mark.parametrize(("package", "name"), _marked())
def test_a_name_of_the_seeds_exists(package: str, name: str) -> None:
    module = importlib.import_module(package)
    if name.endswith("()"):
        owner, method = name[:-2].split(".")
        assert callable(getattr(getattr(module, owner), method)), f"{owner} has no method {method}()"
    elif name.endswith(")"):
        owner, arguments = name[:-1].split("(")
        _takes(getattr(module, owner), [argument.strip() for argument in arguments.split(",")])
    elif "." in name:
        owner, member = name.split(".")
        assert _has(getattr(module, owner), member), f"{owner} has no {member}"
    else:
        assert hasattr(module, name), f"{package} has no {name}"


def test_the_error_of_checkpoints_takes_what_that_of_the_seeds_takes() -> None:
    reason, cause = CheckpointFailureReason.CHECKPOINT_EXPIRED, ValueError("why")
    assert CheckpointException is CheckpointError
    assert CheckpointException(reason).get_checkpoint_failure_reason() is reason
    assert CheckpointException(reason, cause).__cause__ is cause
    assert CheckpointException("text", cause).__cause__ is cause
    assert "text" in str(CheckpointException("text"))


@pytest.mark.skipif(not SEEDS.exists(), reason="the seed documents are not part of a clone")
def test_the_list_is_what_the_documents_say() -> None:
    documents = [path.read_text(encoding="utf-8") for path in sorted(SEEDS.iterdir())]
    assert sorted(name for _, name in listed()) == names_in(documents)


def _takes(owner: Any, arguments: list[str]) -> None:
    if owner is CheckpointError:
        return  # its four forms are tested above
    parameters = list(inspect.signature(owner).parameters)
    assert parameters[: len(arguments)] == arguments, f"{owner.__name__} takes {parameters}"


def _has(owner: Any, member: str) -> bool:
    if hasattr(owner, member) or member in getattr(owner, "__annotations__", {}):
        return True
    source = inspect.getsource(owner)
    return f"self.{member} = " in source or f"self.{member}: " in source
