"""The documentation is true: its programs run, its links lead somewhere, its generated parts are current."""

from __future__ import annotations

import ast
import importlib
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest

from holdfast import errors
from holdfast.cli import output
from holdfast.common import watermark_strategy
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import ConfigurationError, StateMigrationError
from holdfast.kernel.clock import ManualClock
from holdfast.queryable.wire import errors as query_errors
from holdfast.runtime.job import engine
from holdfast.runtime.master.job_master import JobMaster
from holdfast.storage.scheme import file_system_for
from holdfast.testing import OperatorHarness
from tests.documentation import FURTHER_PAGES, GUIDE, OF_THE_SITE, PAGES, RECIPES, ROOT, Block, blocks
from tests.stories.functions import Numbering
from tests.stories.local import Program, master

LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
NUMBER = re.compile(r"\d+(?:,\d{3})+|\d+\.\d+")
PACKAGES_OF_USERS = [
    "holdfast.common",
    "holdfast.datastream",
    *(f"holdfast.datastream.{name}" for name in ("functions", "state", "window")),
    *(f"holdfast.datastream.connectors{name}" for name in ("", ".database", ".file_system", ".kafka")),
    *("holdfast.metrics", "holdfast.queryable", "holdfast.state_processor", "holdfast.testing"),
]
SVG = "{http://www.w3.org/2000/svg}"
OF_THIS_MACHINE = re.compile(r"/(work|tmp|home|root|Users)/")


PROGRAMS = ("python", "python spark", "python query", "python query spark")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, *PROGRAMS)], ids=lambda page: page.name)
def test_each_program_of_a_page_defines_what_it_uses(page: Path) -> None:
    found = {block.line: block.undefined_names() for block in blocks(page, *PROGRAMS)}
    assert not any(found.values()), found


def test_each_python_block_is_a_program() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"^```(python.*)$", text, re.MULTILINE)) <= set(PROGRAMS), page.name


def test_each_program_that_needs_spark_is_on_a_page_of_which_a_test_runs_them() -> None:
    found = {page for page in [*PAGES, *FURTHER_PAGES] if blocks(page, "python spark")}
    in_test_examples = {*GUIDE, *OF_THE_SITE, ROOT / "README.md"}
    in_tests_of_their_own = {ROOT / "docs" / f"{name}.md" for name in ("state-processor", "from-transform-with-state")}
    assert found - in_test_examples - in_tests_of_their_own - {*RECIPES} == set()


def test_names_that_a_program_does_not_define_are_found() -> None:
    program = """
import math


class Circle:
    def area(self, *, factor=PI):
        return factor * self.radius**2 + offset + math.sqrt(2)


areas = [circle.area() for circle in circles]
print(lambda x: x + areas)
"""
    assert Block(ROOT / "page.md", 1, "python", program).undefined_names() == {"PI", "offset", "circles"}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in blocks(page, "python"):
        place = tmp_path / str(block.line)
        place.mkdir()
        monkeypatch.chdir(place)
        for _ in range(2):  # a reader runs it again
            exec(compile(block.padded, str(page), "exec"), {"__name__": "__main__"})


def test_the_guide_names_all_of_its_pages() -> None:
    assert sorted(GUIDE[1:]) == sorted((ROOT / "docs" / "guide").iterdir())


def test_the_program_of_the_readme_is_the_example() -> None:
    [program] = blocks(ROOT / "README.md", "python spark")
    example = (ROOT / "examples" / "word_count.py").read_text(encoding="utf-8")
    assert example.endswith(program.text)
    assert len(program.text.splitlines()) <= 25


def test_every_example_is_on_the_page_of_examples() -> None:
    links = set(LINK.findall((ROOT / "examples" / "README.md").read_text(encoding="utf-8")))
    places = {place.name for place in (ROOT / "examples").iterdir()}
    assert places - {"README.md", "__pycache__"} <= links


@pytest.mark.parametrize("page", [*PAGES, *FURTHER_PAGES], ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        target, _, anchor = match["target"].partition("#")
        if "://" in target:
            continue
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), match["target"]
        if anchor:
            assert anchor in anchors(place), match["target"]


def test_the_index_of_decisions_has_each_under_its_title() -> None:
    place = ROOT / "docs" / "decisions"
    index = (place / "README.md").read_text(encoding="utf-8")
    for page in sorted(place.glob("0*.md")):
        title = page.read_text(encoding="utf-8").partition("\n")[0].partition(". ")[2]
        assert index.count(f"- [{title}]({page.name})\n") == 1, page.name


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_no_place_of_a_machine_and_keep_their_width(page: Path) -> None:
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        assert not OF_THIS_MACHINE.search(line), f"{page.name}:{number}"
        assert len(line) <= 120 or line.startswith("|"), f"{page.name}:{number}"


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / name))


def test_the_page_of_options_is_current() -> None:
    # In a process of its own: tests register options, too.
    command = [sys.executable, str(ROOT / "scripts" / "options_page.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run: python scripts/options_page.py"


def test_the_page_of_metrics_is_current() -> None:
    assert script("metrics_page.py")["current"](), "run: python scripts/metrics_page.py"


def test_the_page_of_commands_is_current() -> None:
    assert script("cli_page.py")["main"](["--check"]) == 0, "run: python scripts/cli_page.py"


def test_the_page_of_commands_has_what_help_prints() -> None:
    @click.group()
    def tool() -> None:
        """Do things."""

    @tool.command(epilog="\b\nExamples:\n  tool copy a *.txt")
    @click.argument("source")
    @click.option("--to", metavar="A|B", help="Where *.txt files go.", default="here", show_default=True)
    def copy(source: str, to: str) -> None:
        """Copy SOURCE.

        Not [more].
        """

    text = script("cli_page.py")["page"](tool, "tool")

    assert "| [`tool copy`](#tool-copy) | Copy SOURCE. |\n" in text
    assert "## tool copy\n\n```text\ntool copy [OPTIONS] SOURCE\n```\n\nCopy SOURCE.\n\nNot \\[more].\n" in text
    assert "| `--to A\\|B` | Where \\*.txt files go. \\[default: here] |\n" in text
    assert text.endswith("Examples:\n\n```text\ntool copy a *.txt\n```\n")


def test_the_page_of_rest_is_current() -> None:
    assert script("rest_page.py")["main"](["--check"]) == 0, "run: python scripts/rest_page.py"


def test_the_page_of_pyflinks_names_is_current() -> None:
    assert script("pyflink_page.py")["main"](["--check"]) == 0, "run: python scripts/pyflink_page.py"


@pytest.mark.parametrize("package", PACKAGES_OF_USERS)
def test_the_reference_has_what_users_import(package: str) -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    shown = {
        name
        for page in pages
        for name in re.findall(r"^::: \S+\.(\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    module = importlib.import_module(package)
    kinds = [name for name in module.__all__ if getattr(getattr(module, name), "__name__", None) == name]
    assert kinds and set(kinds) - shown == set()


def test_the_page_of_installation_has_each_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    text = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    assert [extra for extra in extras if f"`{extra}`" not in text] == []


def test_the_table_of_speed_is_that_of_the_results() -> None:
    assert script("speed_table.py")["main"](["--check"]) == 0, "run: python scripts/speed_table.py"


def test_the_readme_is_short_and_its_numbers_are_measured() -> None:
    text = text_of("README.md")
    assert len(text.splitlines()) <= 150
    said = text[text.index("## How fast") : text.index("## What it is not")]
    assert set(NUMBER.findall(said)) - measured_numbers() == set()


def test_each_row_of_the_readmes_table_is_on_the_page_of_the_comparison() -> None:
    rows = re.compile(r"^\| ([^|]+) \|(?:[^|\n]+\|){6}$", re.MULTILINE)
    short = set(rows.findall(text_of("README.md")))
    assert len(short) >= 8 and short - set(rows.findall(text_of("docs/comparison.md"))) == set()


def test_the_numbers_of_the_comparison_are_measured_ones() -> None:
    text = text_of("docs/comparison.md")
    speed = text[text.index("## Speed") : text.index("## When to use something else")]
    table = speed[speed.index("<!-- speed -->") : speed.index("<!-- /speed -->")]  # a script makes and rounds it
    said = set(NUMBER.findall(speed.replace(table, "")))
    assert said and said - measured_numbers() == set()


def test_each_cell_of_the_comparison_refers_to_a_source_on_its_page() -> None:
    text = text_of("docs/comparison.md")
    table, _, sources = text.partition("## Sources")
    numbers = {number for group in re.findall(r"\[(\d[\d, ]*)\]", table) for number in group.split(", ")}
    listed = re.findall(r"^(\d+)\. ", sources, re.MULTILINE)
    assert listed == [str(number) for number in range(1, len(listed) + 1)]
    assert numbers == set(listed)


def measured_numbers() -> set[str]:
    pages = [ROOT / "benchmarks" / "RESULTS.md", *(ROOT / "benchmarks" / "results").glob("*.md")]
    return set(NUMBER.findall("\n".join(page.read_text(encoding="utf-8") for page in pages)))


def test_the_table_of_speed_is_made_of_the_newest_results() -> None:
    lines = [
        {"engine": "holdfast", "rows_per_second": 271_828.1, "sink": "parquet"},
        {"engine": "floor", "rows_per_second": 314_159.2, "sink": "parquet"},
        {"engine": "spark-native", "rows_per_second": 99_999.0, "sink": "parquet"},
    ]
    facts = {"rows": 200_000, "keys": 100_000, "rounds": [1.0, 2.0, 3.0]}
    printed = "\n".join(json.dumps(line | facts) for line in lines)
    old = "## keyed_count: an old machine, 2020-01-01\n\n```json\n{}\n```\n"
    new = f"### keyed_count: 2 cores, Spark 4.3.0, 2026-11-21\n\nText.\n\n```json\n{printed}\n```\n"
    results = f"# Results\n\n{new}\n{old}"
    readme = "# H\n<!-- speed -->\nold\n<!-- /speed -->\nend\n"

    found = script("speed_table.py")["with_speed"](readme, results)

    assert "| Holdfast | 272,000 | 0.87 | one a row | parquet |\n" in found
    assert "| 99,999 |" not in found and "| 100,000 | 0.32 | one a key |" in found
    assert "Measured on 2 cores, Spark 4.3.0, 2026-11-21: 200,000 rows an epoch, 100,000 keys, the median of 3" in found
    assert found.startswith("# H\n<!-- speed -->\n|") and found.endswith("<!-- /speed -->\nend\n")


def test_the_charts_of_the_readme_are_those_of_the_results() -> None:
    assert script("readme_plot.py")["main"](["--check"]) == 0, "run: python scripts/readme_plot.py"


def test_the_chart_of_latency_has_each_engine_of_the_newest_table() -> None:
    head = "| engine | events/s | events | p50 ms | p99 ms | p99.9 ms |\n|---|---:|---:|---:|---:|---:|\n"
    rows = (
        "| holdfast-real-time | 1,000 | 30,000 | 1.5 | 2.5 | 3.5 |\n"
        "| holdfast-real-time | 10,000 | 300,000 | 4.5 | 9.0 | 12.5 |\n"
        "| spark-tws | 10,000 | 300,000 | did not keep up: 12.5 s behind at the end, 378 events not seen | | |\n"
        "| pyflink | 10,000 | 300,000 | 600.0 | 24000.0 | 25000.0 |\n"
    )
    old = "\n### From Kafka to Kafka, before\n\n" + head + "| flink-sql | 10,000 | 300,000 | 8.5 | 16.5 | 17.5 |\n"
    results = f"# Results\n\n### From Kafka to Kafka, with peers: 2 cores\n\n{head}{rows}{old}"

    drawn = script("readme_plot.py")["latency"](results)

    texts = [element.text for element in ElementTree.fromstring(drawn).iter(f"{SVG}text")]
    assert texts[1:] == [
        *("Holdfast in real time, two tasks a stage", "4.5", "9.0", "Spark transformWithState", "did not keep up"),
        *("PyFlink, thread mode", "600.0", "24,000.0, cut"),
    ]
    bars = [float(bar.get("width", "")) for bar in ElementTree.fromstring(drawn).iter(f"{SVG}rect")][1:]
    assert bars == [2.1, 4.2, 280.0, 560.0]


def test_the_plot_of_nexmark_is_that_of_the_results() -> None:
    assert script("nexmark_plot.py")["main"](["--check"]) == 0, "run: python scripts/nexmark_plot.py"


def test_the_table_of_nexmark_is_that_of_the_results() -> None:
    assert script("nexmark_table.py")["main"](["--check"]) == 0, "run: python scripts/nexmark_table.py"


def test_the_table_of_nexmark_takes_a_run_in_pieces_and_the_later_of_two_results() -> None:
    def line(query: str, engine: str, rate: float) -> str:
        return json.dumps({"query": query, "engine": engine, "events_per_second": rate, "rounds": [1.0, 2.5]})

    old = "\n".join([line("q5", "flink-sql", 400_000), line("q5", "holdfast", 200_000)])
    page = f"# Nexmark\n<!-- table -->\nold\n<!-- /table -->\nText.\n\n```json\n{old}\n```\nend\n"
    joins = [line("q20", engine, rate) for engine, rate in (("holdfast", 4), ("flink-sql", 8))]
    joins.append(line("q20", "flink-sql-without-keys", 2))
    pieces = [line("q5", "holdfast", 300_000), *joins, "warm-up", line("q5", "pyflink", 1_200)]

    found = script("nexmark_table.py")["with_table"](page, pieces)

    assert "| q5 | 300,000 | 400,000 | - | - | 1,200 | 0.75 | - | 250 | 1.0, 2.5 | 1.0, 2.5 |\n" in found
    assert "\n| q20 | 4 | 8 | 2 | - | - | 0.50 | 2.00 | - | 1.0, 2.5 |" in found
    assert "Ratio to Flink SQL with primary keys, joins: 1 measured, median 0.50, lowest 0.50 (q20).\n" in found
    assert "Ratio to Flink SQL without primary keys, joins: 1 measured, median 2.00, lowest 2.00 (q20).\n" in found
    assert "Ratio to Flink SQL, queries that run by columns: 1 measured, median 0.75, lowest 0.75 (q5).\n" in found
    block = found[found.index("```json") :].splitlines()[1:-2]
    assert block == [line("q5", "holdfast", 300_000), old.splitlines()[0], pieces[-1], *joins]
    assert found.startswith("# Nexmark\n<!-- table -->\n| events/s |") and found.endswith("```\nend\n")


def test_the_plot_of_nexmark_has_a_bar_for_each_engine_of_a_query() -> None:
    printed = [
        {"query": query, "engine": engine, "events_per_second": rate}
        for query, engine, rate in (("q5", "holdfast", 200.0), ("q5", "flink-sql", 400.0), ("q11", "holdfast", 100.0))
    ]
    results = "# Nexmark\n\n```json\n" + "\n".join(map(json.dumps, printed)) + "\n```\n"

    drawn = ElementTree.fromstring(script("nexmark_plot.py")["plot"](results))

    texts = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert {"q5", "q11", "Holdfast", "Flink SQL"} <= set(texts)
    bars = [float(element.get("height", 0)) for element in drawn.iter() if element.tag.endswith("rect")][-3:]
    assert bars[0] * 2 == bars[1] == bars[2] * 4


def test_the_plot_shows_every_engine_and_every_size_of_the_newest_runs() -> None:
    engines = [{"engine": "holdfast", "rows_per_second": 271_828.1}, {"engine": "floor", "rows_per_second": 314_159.2}]
    sizes = [
        {"backend": backend, "form": "rows", "keys": keys, "epoch_seconds": keys / 1e8}
        for backend in ("hashmap", "columnar")
        for keys in (100_000, 10_000_000)
    ]
    old = "## large_state: an old machine, 2020-01-01\n\n```json\n{}\n```\n"
    results = "# Results\n"
    for name, lines in (("keyed_count", engines), ("large_state", sizes)):
        printed = "\n".join(map(json.dumps, lines))
        results += f"\n### {name}: 2 cores, 2026-11-21\n\n```json\n{printed}\n```\n"

    drawn = ElementTree.fromstring(script("readme_plot.py")["speed"](results + old))

    texts = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert {"Holdfast", "272,000", "314,000", "hashmap, rows", "columnar, rows", "100,000", "10,000,000"} <= set(texts)
    assert sum(element.tag.endswith("circle") for element in drawn.iter()) == 4
    # The floor is longer than Holdfast.
    bars = [float(element.get("width", 0)) for element in drawn.iter() if element.tag.endswith("rect")][1:]
    assert bars == sorted(bars, reverse=True)


def numbered(directory: Path) -> JobMaster:
    program = Program()
    stream = program.source("in", "key string, n bigint").key_by("key")
    numbering = Numbering(lambda value, number: (value.key, number))
    stream.process(numbering, output_type="key string, n bigint").uid("numbering").print().uid("out")
    job = master(program, directory, [{"in": [("a", 1), ("b", 2)]}], clock=ManualClock(1000))
    job.run()
    return job


def test_the_format_page_names_every_field(tmp_path: Path) -> None:
    from examples import read_checkpoint

    job = Path(numbered(tmp_path).job.directory.path)
    metadata = read_checkpoint.document(read_checkpoint.newest(job))
    register = read_checkpoint.document(max((job / "register").glob("v-*")))
    operator = metadata["operators"][0]
    run = read_checkpoint.Run(job, operator["runs"][0])
    segment = next(iter(run.segments.values()))
    parts = [metadata, register, register["checkpoints"][0], operator, operator["runs"][0], run.footer, segment,
             segment["schema"], run.rows("count")[0]]  # fmt: skip

    page = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    missing = {name for part in parts for name in part if f"`{name}`" not in page and f'"{name}"' not in page}
    assert missing == set()


class Turnover(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor[int]("total", "bigint")
        descriptor.set_queryable("totals")
        self.total = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> None:
        self.total.update((self.total.value() or 0) + value.n)


def test_state_is_asked_for_as_the_page_on_operations_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = Program()
    orders = program.source("in", "customer string, n bigint").key_by("customer")
    orders.process(Turnover(), output_type="bigint").uid("turnover").print().uid("out")
    master(program, tmp_path, [{"in": [("ada", 120), ("bob", 1), ("ada", 30)]}], name="turnover").run()

    holdfast = Path(sys.executable).with_name("holdfast")
    command = [str(holdfast), "state-server", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            host, port = server.stdout.readline().removeprefix("listening at ").strip().split(":")
            printed = blocks(ROOT / "docs" / "operations.md", "python query")
            for block in printed + blocks(ROOT / "docs" / "queries.md", "python query"):
                assert '"127.0.0.1", 9069' in block.text
                text = block.padded.replace('"127.0.0.1", 9069', f'"{host}", {port}')
                exec(compile(text, str(block.page), "exec"), {})
            assert capsys.readouterr().out == "150 as of checkpoint 1\n"
            asked = subprocess.run(
                [str(holdfast), "query", "--address", f"{host}:{port}", "turnover", "totals", "ada"],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert asked.stdout.rstrip().endswith("checkpoint 1  ada  150")
        finally:
            server.terminate()


def test_the_page_on_queries_names_every_error() -> None:
    own = {
        name for name, value in vars(query_errors).items()
        if isinstance(value, type) and issubclass(value, query_errors.QueryError) and value.__name__ == name
    }  # fmt: skip
    table = text_of("docs/queries.md").partition("<!-- query errors -->")[2]
    assert set(re.findall(r"^\| `(\w+Error)`", table, re.MULTILINE)) == own - {"QueryError"}


def test_each_quoted_message_is_raised_or_logged() -> None:
    quoted = re.findall(r"^\*\*`(.+?)`\*\*$", text_of("docs/troubleshooting.md"), re.MULTILINE)
    messages = texts_of_source()
    assert len(quoted) > 60
    assert [fragment for fragment in quoted if fragment.strip(". ") not in messages] == []


def test_a_message_that_nothing_raises_is_found() -> None:
    messages = texts_of_source()
    assert "is a Spark Connect session, on which Holdfast does not run yet" in messages
    assert "is a Spark Connect session, on which Flink does not run yet" not in messages


@cache
def texts_of_source() -> str:
    """Return each text in the source on a line, with three dots for the values in it."""
    return "\n".join(_texts())


def _texts() -> Iterator[str]:
    for path in sorted(ROOT.glob("src/holdfast/**/*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                parts = [node.value]
            elif isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values]
            else:
                continue
            text = re.sub(r"%(\.\d+)?[srdfg]|'\.\.\.'", "...", "".join(parts))
            yield re.sub(r"\.{4,}", "...", text)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_page_on_deployment_names_all_dependencies() -> None:
    dependencies = tomllib.loads(text_of("pyproject.toml"))["project"]["dependencies"]
    names = {re.split(r"[<>=]", dependency)[0] for dependency in dependencies}
    found = re.search(r"its dependencies \(([^)]*)\)", text_of("docs/deploy.md"))
    assert found is not None and set(re.findall(r"`(\w+)`", found[1])) == names


def test_the_page_on_operations_names_every_error() -> None:
    own = {
        name for name, value in (vars(errors) | vars(engine)).items()
        if isinstance(value, type) and issubclass(value, errors.HoldfastError) and value.__name__ == name
    }  # fmt: skip
    # Those that never leave the engine: they are what a file system, a register or an epoch says to its caller.
    inside = {"ConflictError", "InconsistentEpochError", "AlreadyExistError", "NotExistError", "HoldfastError"}
    inside.add("EpochAbandonedError")
    inside.add("EngineUnavailableError")  # in the line of EngineError
    assert "an `EngineUnavailableError`" in text_of("docs/operations.md")
    assert set(re.findall(r"^\| `(\w+Error)`", text_of("docs/operations.md"), re.MULTILINE)) == own - inside


def test_the_page_on_architecture_names_every_package() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", text_of("docs/architecture.md"), re.MULTILINE))
    packages = {path.parent.name for path in ROOT.glob("src/holdfast/*/__init__.py")}
    modules = {path.stem for path in ROOT.glob("src/holdfast/*.py")} - {"__init__"}
    assert named == packages | modules


def test_the_page_on_architecture_names_files_that_exist() -> None:
    page = text_of("docs/architecture.md")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", page, re.MULTILINE)
    named = {(package, name) for package, names in rows for name in re.findall(r"`(\w+)`", names)}
    present = {(path.parent.name, path.stem) for path in (ROOT / "src" / "holdfast").glob("*/*")}
    assert named > {("checkpoint", "coordinator"), ("state", "run_file")}
    assert sorted(named - present) == []


def test_the_exit_codes_are_those_of_the_command() -> None:
    table = dict(re.findall(r"^\| (\d+) \| ([^|]+) \|", text_of("docs/operations.md"), re.MULTILINE))
    assert sorted(map(int, table)) == sorted(value for value in vars(output).values() if type(value) is int)
    assert "fenced" in table[str(output.FENCED)] and "refused" in table[str(output.REFUSED_RESTORE)]


def test_what_the_guide_says_is_not_there_is_not_there() -> None:
    assert not hasattr(watermark_strategy, "WatermarkGenerator")
    with pytest.raises(ConfigurationError, match="No file system for scheme 'gs'"):
        file_system_for("gs://bucket/checkpoints")


def test_state_of_another_type_is_refused_as_the_guide_says() -> None:
    same: dict[str, Any] = {"key_by": "key", "key_type": "string", "output_type": "bigint"}
    with OperatorHarness(Last("bigint"), **same) as before:
        before.process_element({"key": "a", "n": 1})
        snapshot = before.snapshot(1)
    with pytest.raises(StateMigrationError, match=r"bigint.*string"):
        OperatorHarness.restore(snapshot, Last("string"), **same).process_element({"key": "a", "n": 2})


class Last(KeyedProcessFunction):
    def __init__(self, declared: str) -> None:
        self.declared = declared

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", self.declared))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.last.value()
        self.last.update(value.n)
