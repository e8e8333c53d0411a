"""Records what PyFlink prints for the programs in tests/programs/pyflink, beside each of them.

    python scripts/record_pyflink.py [--check] [--cache .bench] [--examples] [NAME ...]

A NAME is `state/first_of_each`; without one all are run, one after the other in one process of Flink. The
environment of PyFlink is the one of the benchmarks, made where it is missing (850 MB). With --check nothing is written,
and the exit code says whether PyFlink prints what is recorded. With --examples it is those that PyFlink brings along;
their recordings are in tests/programs/pyflink_examples, and --check is not for them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.engines.pyflink import interpreter  # noqa: E402
from tests.pyflink_programs import FOLDER, Program, programs  # noqa: E402

EXAMPLES = (
    "basic_operations",
    "event_time_timer",
    "process_json_data",
    "state_access",
    "windowing/session_with_dynamic_gap_window",
    "windowing/session_with_gap_window",
    "windowing/sliding_time_window",
    "windowing/tumbling_count_window",
    "windowing/tumbling_time_window",
    "word_count",
)
"""Those that need nothing else and end."""


_RUN = """
import runpy, sys, traceback
paths = sys.argv[1:]
for path in paths:
    sys.argv = [path]
    print("recording", path, flush=True)
    try:
        runpy.run_path(path, run_name="__main__")
    except BaseException:
        print("failed", flush=True)
        traceback.print_exc()
"""
"""What PyFlink's Python runs. Flink's own process prints into the same pipe, and a job ends after its last line."""


def printed(paths: Sequence[Path], python: str) -> Iterator[tuple[Path, list[str] | None]]:
    """The lines that PyFlink prints for programs, one after the other in one process; None for one that fails."""
    # Flink starts its Python workers by the name that is first on the path.
    variables = {**os.environ, "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [python, "-u", "-c", _RUN, *map(str, paths)]
    with (
        tempfile.TemporaryDirectory() as place,
        subprocess.Popen(command, cwd=place, env=variables, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        path, lines = None, []
        for line in process.stdout:
            if line.startswith("recording "):
                if path is not None:
                    yield path, None if "failed" in lines else lines
                path, lines = Path(line.removeprefix("recording ").strip()), []
            else:
                lines.append(line.removesuffix("\n"))
        if path is not None:
            yield path, None if "failed" in lines else lines


def examples(python: str) -> dict[Path, Path]:
    """Those of the wheel, and where they are recorded."""
    where = [python, "-c", "import pyflink; print(pyflink.__path__[0])"]
    found = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    recordings = FOLDER.with_name("pyflink_examples")
    return {found / "examples" / "datastream" / f"{name}.py": recordings / f"{name}.txt" for name in EXAMPLES}


def main() -> int:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--examples", action="store_true")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench")
    arguments = parser.parse_args()
    if arguments.check and arguments.examples:
        parser.error("--check is for the programs, not for --examples")
    python = interpreter(arguments.cache.resolve())
    asked = [Program(name) for name in arguments.names] or programs()
    recordings = examples(python) if arguments.examples else {program.path: program.on_flink for program in asked}
    wrong = 0
    for path, shown in printed(list(recordings), python):
        recording = recordings[path]
        told = f"{path.parent.name}/{path.stem}"
        lines = shown
        if lines and arguments.examples:
            lines = [line for line in lines if re.match(r"(\d+> )?\(", line)]  # they log into the same pipe
        if lines is None:
            wrong += 1
            print(f"{told}: failed")  # noqa: T201
        elif arguments.check:
            recorded = recording.read_text(encoding="utf-8").splitlines()
            same = Program(told).arranged(recorded) == Program(told).arranged(lines)
            wrong += not same
            print(f"{told}: {'the same' if same else lines}", flush=True)  # noqa: T201
        else:
            recording.parent.mkdir(parents=True, exist_ok=True)
            recording.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            print(f"{told}: {len(lines)} lines", flush=True)  # noqa: T201
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
