"""Every single bit of a small checkpoint is flipped: each is refused by the name of its file, no value is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories.flipped import Small


@pytest.mark.soak
def test_every_flipped_bit_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    small = Small(tmp_path)
    for path in small.files():
        bits = 8 * path.stat().st_size
        refused, harmless = small.flipped(path, iter(range(bits)))
        print(f"{path.parent.name}/{path.name}: {bits} bits, {refused} refused, {harmless} without effect")
        assert refused == bits or path.parent.name == "register"
