"""Every single bit of small checkpoints is flipped: each is refused by the name of its file, no value is wrong.

Nor does any of them take long, or much memory: what one may take is a part of the story.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories.flipped import KINDS


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_is_rejected_with_the_file_name(tmp_path: Path, kind: str) -> None:
    small = KINDS[kind](tmp_path)
    for path in small.files():
        bits = 8 * path.stat().st_size
        found = small.flipped(path, range(bits))
        print(
            f"{kind}: {path.parent.name}/{path.name}: {bits} bits, {found.refused} refused, {found.harmless} without "
            f"effect, at most {1000 * found.seconds:.1f} ms of the processor and {found.mebibytes:.1f} MiB for one"
        )
        assert found.refused == bits or path.parent.name == "register"
