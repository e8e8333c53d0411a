"""A job on Spark goes on from the golden archive that one on Spark has written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples import read_checkpoint
from holdfast.errors import RestoreError
from holdfast.kernel.ids import JobID
from tests.golden.spark_positions import NAME, STREAMED, count, folder_of
from tests.golden.test_golden import unpacked
from tests.golden.test_golden_spark import ARCHIVES, COUNTED

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_a_checkpoint_of_an_earlier_release_resumes_with_new_files_only(
    spark: Any, archive: Path, tmp_path: Path
) -> None:
    root = unpacked(archive, tmp_path / "checkpoints")
    before = form_of_positions(root)
    assert "inputs" not in before[1], "it was written before inputs had uids, and they are found by their places"
    with folder_of([*STREAMED, ["kelp", "weed"]]):
        told = count(spark, root)

    assert sorted(told) == [("kelp", COUNTED["kelp"] + 1), ("weed", 1)], "the words at once were not read again"
    found = {name: content for _, name, _, content in read_checkpoint.states(root / str(JobID.from_name(NAME)))}
    assert found["seen"] == COUNTED + Counter(["kelp", "weed"])
    files = read_checkpoint.source_files(root / str(JobID.from_name(NAME)))
    assert {f"sources/0/{batch}" for batch in range(3)} <= set(files) and "offsets/2" in files
    fields, streaming, handles = form_of_positions(root)
    added = fields - before[0], streaming - before[1]
    assert added == ({"static"}, {"inputs"}), "what is written today has what was written then, and the inputs' names"
    assert handles == before[2]


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_inputs_of_a_checkpoint_without_uids_cannot_be_added(spark: Any, archive: Path, tmp_path: Path) -> None:
    root = unpacked(archive, tmp_path / "checkpoints")
    (tmp_path / "more").mkdir()
    more = spark.readStream.text(str(tmp_path / "more")).selectExpr("value word")
    with folder_of(STREAMED), pytest.raises(RestoreError, match=r"1 inputs by their places only.* this job has 2"):
        count(spark, root, more)


def form_of_positions(root: Path) -> Any:
    """The fields that say where sources stand."""
    found = read_checkpoint.checkpoint(root / str(JobID.from_name(NAME)))[0]["source_positions"]
    return set(found), set(found["streaming"]), {frozenset(handle) for handle in found["streaming"]["sources"].values()}
