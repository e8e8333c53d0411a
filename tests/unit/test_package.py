"""What `import holdfast` costs: nothing, so that a query client or a harness pays only for what it uses."""

from __future__ import annotations

import subprocess
import sys


def test_import_holdfast_imports_nothing_of_it() -> None:
    code = (
        "import sys; before = set(sys.modules); import holdfast; "
        "print(holdfast.__version__, sorted(set(sys.modules) - before))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split(" ", 1)[1] == "['holdfast']\n"
