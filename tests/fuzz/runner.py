"""Fuzzes one target with coverage guidance: `python -m tests.fuzz.runner TARGET -max_total_time=3600`.

Needs Atheris. The remaining arguments are those of libFuzzer. What it finds interesting goes to `.fuzz/TARGET`, beside
the inputs that the repository keeps. What breaks the parser goes to `.fuzz/TARGET-crash-...`, one input for each place
in the code, and the run goes on; a hang, or more memory than is allowed, ends it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import sys
import traceback
from pathlib import Path

import atheris

from tests.fuzz.mutation import mutated

# Before the parsers are imported, so that their branches count; Arrow and numpy stay as they are.
with atheris.instrument_imports(include=["holdfast", "json"], enable_loader_override=False):
    from tests.fuzz.targets import CORPUS, NAMES, Target

    NAME = sys.argv[1] if len(sys.argv) > 1 else ""
    if NAME not in NAMES:
        sys.exit(f"usage: python -m tests.fuzz.runner TARGET [OPTION...]; targets: {' '.join(NAMES)}")
    TARGET = Target(NAME)
    for path in TARGET.corpus:  # what is imported when it is needed
        with contextlib.suppress(Exception):
            TARGET.accepts(path.read_bytes())

FOUND = Path(".fuzz")
LIMITS = ("-timeout=30", "-rss_limit_mb=3000", "-max_len=65536", "-reduce_inputs=0", "-print_final_stats=1")


class Run:
    """One run over the target, which goes on after a defect."""

    def __init__(self) -> None:
        self.found = FOUND / NAME
        self.found.mkdir(parents=True, exist_ok=True)
        self._places: dict[tuple[str, str, int | None], str] = {}

    def once(self, data: bytes) -> None:
        """Read one input, and keep it if it breaks the parser at a place that is new."""
        try:
            TARGET.accepts(data)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = type(error).__name__, last.filename, last.lineno
            if place not in self._places:
                kept = f"{self.found}-crash-{hashlib.sha256(data).hexdigest()[:12]}"
                Path(kept).write_bytes(data)
                self._places[place] = kept
                print(f"DEFECT {place} {str(error)[:200]!r} in {kept}", flush=True)


def _worse(data: bytes, max_size: int, seed: int) -> bytes:
    chance = random.Random(seed)
    if chance.random() < 0.6:
        return mutated(data, chance)[:max_size]
    made: bytes = atheris.Mutate(data, max_size)
    return made


def main() -> None:
    """Run until libFuzzer has had enough."""
    logging.disable()
    run = Run()
    places = (str(run.found), str(CORPUS / NAME), f"-artifact_prefix={run.found}-")
    atheris.Setup([sys.argv[0], *places, *LIMITS, *sys.argv[2:]], run.once, custom_mutator=_worse)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
