"""The web page as people use it, in a real browser on jobs that run: look at everything, steer, and break things."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from holdfast.dispatcher.dispatcher_machine import JobEntry, Phase
from holdfast.dispatcher.job_manager_api import JobManagerApi
from holdfast.kernel.clock import SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.restart_strategy import restart_strategy_from
from holdfast.kernel.secret import get_logger
from holdfast.rest.client import RestClient
from holdfast.rest.server import RestServer
from holdfast.runtime.epoch import EpochResult
from holdfast.runtime.exchange.task_report import EpochReport, StepReport, TaskReport
from tests.browser import chromium, violations, visitor
from tests.stories.cluster import Cluster
from tests.stories.process import ROOT
from tests.stories.served import Running, holdfast, until
from tests.unit.runtime.realtime.test_real_time_metrics import program_of
from tests.unit.runtime.realtime.test_real_time_metrics import running as running_in_real_time

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]

TABS = ("Graph", "Epochs", "Checkpoints", "State", "Exceptions", "Log", "Configuration")
EVIL = '<img src=x onerror="alert(1)"><b>bold</b>'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    begun: list[Running] = []

    def start(name: str = "words", **options: Any) -> Running:
        savepoints = {"execution.checkpointing.savepoint-dir": str(tmp_path / "savepoints")}
        begun.append(Running(tmp_path, name, **savepoints, **options))
        return begun[-1]

    yield start
    for job in begun:
        job.end()


def log_in(page: Any, job: Running, place: str = "") -> None:
    address = job.client.address
    page.goto(f"{address.url}/{place}")
    page.get_by_label("Bearer token").fill(address.bearer_token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name=job.master.job.name, exact=True).wait_for()


def tab(page: Any, name: str) -> None:
    page.get_by_role("navigation", name="About the job").get_by_role("link", name=name).click()


def legend(chart: Any) -> list[str]:
    """Each series of a chart with the value that its legend shows."""
    series = chart.locator(".u-legend .u-series").all()
    return [" ".join(part.inner_text() for part in one.locator("th, td").all()) for one in series]


def cells(page: Any, table: str) -> list[list[str]]:
    rows = page.get_by_role("region", name=table).locator("tbody tr")
    rows.first.wait_for()
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


RECORD_LABELS = """
  const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
  window.drawings = [];
  CanvasRenderingContext2D.prototype.clearRect = function (...all) {
    window.drawings.push([]);
    return clearRect.apply(this, all);
  };
  CanvasRenderingContext2D.prototype.fillText = function (text, x, ...more) {
    const width = this.measureText(text).width;
    const left = x - ({ right: width, center: width / 2 }[this.textAlign] ?? 0);
    const isWhole = left >= 0 && left + width <= this.canvas.width;
    if (this.canvas.closest(".uplot")) window.drawings.at(-1).push([text, isWhole]);
    return fillText.call(this, text, x, ...more);
  };
"""


def drawn_labels(page: Any) -> list[str]:
    """The labels of all charts so far: none was cut, and no chart has one twice."""
    drawings = page.evaluate("window.drawings")
    assert [text for drawing in drawings for text, is_whole in drawing if not is_whole] == []
    for drawing in drawings:
        texts = [text for text, _ in drawing]
        assert len(set(texts)) == len(texts), texts
    return [text for drawing in drawings for text, _ in drawing]


def test_a_real_time_job_shows_where_its_time_goes(browser: Any, tmp_path: Path) -> None:
    with running_in_real_time(program_of(0.002, 5000), tmp_path) as master, visitor(browser) as page:
        address = RestClient.find(master.job.directory).address
        until(lambda: master.progress.recent and master.progress.recent[-1].real_time["operators"])
        page.add_init_script(RECORD_LABELS)
        page.goto(f"{address.url}/")
        page.get_by_label("Bearer token").fill(address.bearer_token)
        page.keyboard.press("Enter")
        page.get_by_text("in the last second").wait_for()
        graph = page.get_by_role("region", name="Graph of the job")
        source = graph.locator(".source").filter(has_text="waits")
        source.wait_for()
        graph.get_by_role("link", name="slow").click()
        titles = page.get_by_role("region", name="Subtasks, the busiest first").locator("thead th")
        titles.get_by_text("Busy now").wait_for()
        assert {"Back-pressured", "Idle", "Alignment", "Snapshot"} <= set(titles.all_inner_texts())
        times = page.get_by_role("group", name="Time of the tasks of the chosen operator")
        times.locator("canvas").wait_for()
        times.get_by_text(re.compile("slow.*: busy [0-9]+%, back-pressured [0-9]+%, idle [0-9]+%")).wait_for()
        source.click()
        times.get_by_text(re.compile(r"numbers.*back-pressured ([5-9]\d|100)%")).wait_for()
        assert [re.sub("[0-9]+", "1", text) for text in legend(times)[1:]] == [
            "busy 1%",
            "back-pressured 1%",
            "idle 1%",
        ]
        assert page.get_by_role("region", name="Subtasks, the busiest first").count() == 0, "a source has none here"
        assert violations(page) == []
        tab(page, "Epochs")
        [newest, *_] = cells(page, "The newest epochs")
        assert any(cell.endswith("% keyed_process (slow)") for cell in newest), newest
        until(lambda: any(re.fullmatch(r"\d\d:\d\d:\d\d", text) for text in drawn_labels(page)))
        tab(page, "Checkpoints")
        heads = page.get_by_role("region", name="Checkpoints and savepoints").locator("thead th")
        heads.get_by_text("Alignment").wait_for()
        assert violations(page) == []


def test_every_page_shows_what_the_job_does(browser: Any, start: Callable[..., Running]) -> None:
    job = start(**{"s3.secret-key": "sesame"})
    job.say("sand", "silt", "kelp")
    until(lambda: job.client.get("epochs")["total"] == 2)
    with visitor(browser) as page:
        log_in(page, job)
        assert page.get_by_text("RUNNING", exact=True).first.is_visible()
        assert [cells(page, "Rows by edge")[0][at] for at in (0, 1, 2, 3)] == [
            "collection words",
            "keyed_process count",
            "by key",
            "3",
        ]
        page.get_by_role("region", name="Graph of the job").get_by_role("link", name="keyed_process").click()
        subtasks = cells(page, "Subtasks, the busiest first")
        assert sorted(row[0] for row in subtasks) == ["0", "1"]
        assert sum(int(row[1]) for row in subtasks) == 5
        sink = page.get_by_role("region", name="Graph of the job").locator("a.node.sink")
        assert (
            re.search(r"5 → 5 rows\s+.*commit [\d.]+ m?s", sink.inner_text(), re.DOTALL)
            and "waits" not in sink.inner_text()
        )
        sink.click()
        page.get_by_text("Committed", exact=True).wait_for()
        told = page.locator(".subtasks").inner_text()
        assert re.search(r"Committed\s+5 rows", told) and re.search(r"of epoch 2\b", told) and "nothing is late" in told

        tab(page, "Epochs")
        assert [row[0] for row in cells(page, "The newest epochs")] == ["2", "1"]
        page.locator(".uplot canvas").nth(2).wait_for()
        job.say("late")
        page.get_by_role("region", name="The newest epochs").get_by_role("rowheader", name="3").wait_for()

        tab(page, "Checkpoints")
        assert [row[:3] for row in cells(page, "Checkpoints and savepoints")][-1] == ["1", "checkpoint", "COMPLETED"]
        page.get_by_role("link", name="2", exact=True).click()
        [held] = cells(page, "Sizes by state")
        assert held[:4] == ["count", "keyed_process count", "value", "5"]
        page.get_by_label("Between").select_option("1")
        page.get_by_label("and", exact=True).select_option("3")
        page.get_by_role("button", name="Compare").click()
        differing = cells(page, "Differences between 1 and 3")
        assert ["keyed_process count", "count", "changed", "rows", "2", "5", "+3"] in differing

        tab(page, "State")
        page.get_by_role("region", name="States").get_by_role("link", name="count").click()
        assert len(cells(page, "Rows of count")) == 5
        page.get_by_label("Key", exact=True).fill("kelp")
        page.keyboard.press("Enter")
        page.get_by_role("region", name="Rows of count").get_by_text("silt").wait_for(state="detached")
        [[key, _, value]] = cells(page, "Rows of count")
        assert (key, value) == ("kelp", "2")
        page.get_by_label("Where", exact=True).fill("value < 2 and key != rock")
        page.get_by_role("button", name="Scan").click()
        page.get_by_text("3 rows shown of 5 read").wait_for()
        assert sorted(row[0] for row in cells(page, "Rows of count")) == ["late", "sand", "silt"]
        page.get_by_label("Where", exact=True).fill("value is large")
        page.get_by_role("button", name="Scan").click()
        page.get_by_text("is not a condition").wait_for()
        page.get_by_role("button", name="Largest keys and key groups").click()
        assert len(cells(page, "Largest keys")) == 5
        assert 1 <= len(cells(page, "Largest key groups")) <= 5

        tab(page, "Exceptions")
        page.get_by_text("Nothing has failed").wait_for()
        get_logger("holdfast.tests").warning("a line of the log")
        for number in range(1000):
            get_logger("holdfast.tests").warning("line %d %s", number, "-" * 60)
        tab(page, "Log")
        page.get_by_role("region", name="Log of the job").get_by_text("holdfast.tests: a line of the log").wait_for()
        tab(page, "Configuration")
        assert ["s3.secret-key", "******"] in cells(page, "Options")
        assert "sesame" not in page.content()


def test_a_question_comes_before_each_action_and_its_outcome_after(
    browser: Any, start: Callable[..., Running], tmp_path: Path
) -> None:
    job = start()
    with visitor(browser) as page:
        log_in(page, job)
        for name in ("Savepoint", "Rescale", "Stop", "Cancel"):
            page.get_by_role("button", name=name, exact=True).click()
            page.get_by_role("dialog").get_by_role("button", name="Back").click()
            page.get_by_role("dialog").wait_for(state="detached")
        assert job.client.get("checkpoints")["counts"]["total"] == 1, "nothing has happened yet"

        page.get_by_role("button", name="Savepoint", exact=True).click()
        page.get_by_label("Directory").fill("not/absolute")
        page.get_by_role("button", name="Take a savepoint").click()
        page.get_by_role("dialog").get_by_role("alert").get_by_text("absolute").wait_for()
        assert page.get_by_label("Directory").input_value() == "not/absolute", "what was entered stays"
        page.get_by_label("Directory").fill("")
        page.get_by_role("button", name="Take a savepoint").click()
        told = page.get_by_role("status").get_by_text("Savepoint: /").inner_text()
        assert (Path(told.removeprefix("Savepoint: ")) / "_metadata").exists()

        page.get_by_role("button", name="Rescale", exact=True).click()
        field = page.get_by_label("count")
        left = "(element) => { const all = document.createRange(); all.selectNodeContents(element);"
        left += " return all.getBoundingClientRect().left; }"
        assert page.get_by_role("dialog").locator("label").evaluate(left) == field.bounding_box()["x"]  # type: ignore[index]
        page.get_by_label("count").fill("0")
        page.get_by_role("button", name="Rescale", exact=True).last.click()
        page.get_by_role("alert").get_by_text("at least 1").wait_for()
        page.get_by_label("count").fill("1000")
        page.get_by_role("button", name="Rescale", exact=True).last.click()
        page.get_by_role("dialog").get_by_role("alert").get_by_text("128").wait_for()
        assert page.get_by_label("count").input_value() == "1000"
        page.get_by_label("count").fill("5")
        page.get_by_role("button", name="Rescale", exact=True).last.click()
        page.get_by_role("status").get_by_text("Rescaled: keyed_process (count) to 5").wait_for()
        assert job.client.parallelism() == {"count": 5}
        page.get_by_role("region", name="Graph of the job").get_by_role("link", name="count").click()
        page.get_by_text(re.compile("Rescaled at .* the operator has read 2 rows and emitted 2 rows")).wait_for()

        page.get_by_role("button", name="Stop", exact=True).click()
        page.get_by_label("Directory").fill(str(tmp_path / "elsewhere"))
        page.get_by_role("button", name="Stop with a savepoint").click()
        told = page.get_by_role("status").get_by_text("Stopped. Savepoint: ").inner_text()
        assert str(tmp_path / "elsewhere") in told
        job.thread.join(30)
        assert job.master.status.value == "SUSPENDED"


def test_a_job_is_cancelled(browser: Any, start: Callable[..., Running]) -> None:
    job = start()
    with visitor(browser) as page:
        log_in(page, job)
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("button", name="Cancel the job").click()
        page.get_by_role("status").get_by_text("is being cancelled").wait_for()
        job.thread.join(30)
        assert job.master.status.value == "CANCELED"


def test_a_job_that_has_ended_stays_on_the_page_as_it_was(browser: Any, start: Callable[..., Running]) -> None:
    job = start()
    job.say("sand", "silt", "kelp")
    until(lambda: job.client.get("epochs")["total"] == 2)
    with visitor(browser, timezone_id="UTC") as page:
        log_in(page, job)
        cells(page, "Rows by edge")
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("button", name="Cancel the job").click()
        banner = page.get_by_role("alert").get_by_text("The job ended at")
        banner.wait_for()
        assert re.fullmatch(
            r"The job ended at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(CANCELED\)\. This page is not live any more: it "
            r"keeps what it has seen last\. Do not reload it: its server ends with the job\. A job manager keeps "
            r"results and logs of ended jobs\.",
            banner.inner_text(),
        )
        job.thread.join(30)
        page.wait_for_timeout(500)
        page.evaluate("window.dispatchEvent(new Event('hashchange'))")  # asks a process that is not there any more
        page.wait_for_timeout(500)
        banner.wait_for()
        assert page.get_by_text("CANCELED", exact=True).first.is_visible()
        assert page.get_by_role("button", name="Savepoint", exact=True).is_disabled()
        assert cells(page, "Rows by edge")[0][:2] == ["collection words", "keyed_process count"]
        # Also what nobody has looked at before.
        page.get_by_role("region", name="Graph of the job").get_by_role("link", name="count").click()
        assert sum(int(row[1]) for row in cells(page, "Subtasks, the busiest first")) == 5
        tab(page, "Epochs")
        assert [row[0] for row in cells(page, "The newest epochs")] == ["2", "1"]
        page.locator(".uplot canvas").first.wait_for()
        tab(page, "Checkpoints")
        assert cells(page, "Checkpoints and savepoints")[-1][:3] == ["1", "checkpoint", "COMPLETED"]
        tab(page, "State")
        cells(page, "States")
        tab(page, "Log")
        page.get_by_role("region", name="Log of the job").wait_for()
        tab(page, "Configuration")
        assert ["restart-strategy.type", "none"] in cells(page, "Options")
        banner.wait_for()


def test_a_job_that_fails_while_one_looks_says_so_and_why(browser: Any, start: Callable[..., Running]) -> None:
    job = start()
    with visitor(browser) as page:
        log_in(page, job)
        cells(page, "Rows by edge")
        job.say("poison")
        page.get_by_role("alert").get_by_text("(FAILED)").wait_for()
        job.thread.join(30)
        assert cells(page, "Rows by edge")[0][:2] == ["collection words", "keyed_process count"]
        page.get_by_role("link", name="Last failure").click()
        page.locator("pre").first.get_by_text('raise ValueError("this word is poison")').wait_for()


def test_a_process_that_does_not_answer_is_reported_and_what_was_seen_stays(
    browser: Any, start: Callable[..., Running]
) -> None:
    job = start()
    with visitor(browser) as page:
        log_in(page, job)
        cells(page, "Rows by edge")
        page.route("**/jobs/**", lambda route: route.abort())
        banner = page.get_by_role("alert").get_by_text("does not answer")
        banner.wait_for()
        assert "What you see is from 2" in banner.inner_text()
        assert cells(page, "Rows by edge")[0][:2] == ["collection words", "keyed_process count"]
        page.get_by_role("button", name="Savepoint", exact=True).click()
        page.get_by_label("Directory").fill("/somewhere")
        page.get_by_role("button", name="Take a savepoint").click()
        said = page.get_by_role("dialog").get_by_role("alert")
        said.get_by_text("does not answer").wait_for()
        assert "fetch" not in said.inner_text()
        assert page.get_by_label("Directory").input_value() == "/somewhere"
        page.get_by_role("button", name="Back").click()
        page.unroute("**/jobs/**")
        page.route("**/jobs/**", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
        page.get_by_role("alert").get_by_text("HTTP 502, without a reason. A proxy may have answered").wait_for()
        page.unroute("**/jobs/**")
        banner.wait_for(state="detached")
        until(lambda: page.locator(".stale").count() == 0)


def test_one_of_a_thing_is_singular_and_times_have_a_date_and_the_zone_of_the_browser(
    browser: Any, start: Callable[..., Running]
) -> None:
    job = start()
    job.say("sand")
    until(lambda: job.client.get("epochs")["total"] == 2)
    with visitor(browser, timezone_id="Asia/Kolkata") as page:
        log_in(page, job)
        page.get_by_text(re.compile("ms, 1 row$")).wait_for()
        page.get_by_text(re.compile(r"^since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\+5:30$")).wait_for()
        page.get_by_text(re.compile(r"^Totals of rows and bytes count since \d{4}-.* UTC\+5:30, when this")).wait_for()
        shown = page.get_by_role("main").inner_text()
        assert not re.search(r"\b1 (rows|subtasks|files|epochs)\b", shown), shown
        tab(page, "Epochs")
        began = cells(page, "The newest epochs")[0][1]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\+5:30", began)
        rows = page.get_by_role("group", name="Rows a second")
        rows.locator("canvas").wait_for()
        time, rate = legend(rows)
        assert re.fullmatch(rf"time {re.escape(began[:10])} .* UTC\+5:30", time)
        assert re.fullmatch(r"rows/s [\d.,]+", rate), "the newest value, without a pointer over the chart"
        phases = page.get_by_role("group", name="Time of an epoch, by phase")
        assert len(legend(phases)) == 7
        assert all(re.fullmatch(r"[a-z ]+ [\d.]+ m?s", text) for text in legend(phases)[1:]), legend(phases)
        tab(page, "Checkpoints")
        page.get_by_role("link", name="2", exact=True).click()
        assert cells(page, "Operators in the checkpoint")[0][0] == "keyed_process count"


def test_a_job_on_spark_links_to_its_web_interface(browser: Any, start: Callable[..., Running]) -> None:
    job = start()
    job.engine.web_url = "http://driver.example:4040"
    with visitor(browser) as page:
        log_in(page, job)
        link = page.get_by_role("link", name="web interface")
        assert link.get_attribute("href") == "http://driver.example:4040"
        assert (link.get_attribute("target"), link.get_attribute("rel")) == ("_blank", "noreferrer")
        tab(page, "Log")
        executors = page.get_by_role("link", name="Executors in Spark's web interface")
        assert executors.get_attribute("href") == "http://driver.example:4040/executors/"
        job.engine.web_url = "javascript:alert(1)"
        executors.wait_for(state="detached")
        assert link.count() == 0, "no link that runs something here"


def test_the_graph_fits_and_what_does_not_says_that_it_scrolls(browser: Any, start: Callable[..., Running]) -> None:
    job = start(event_time=True)
    with visitor(browser, viewport={"width": 1280, "height": 900}) as page:
        log_in(page, job)
        graph = page.get_by_role("region", name="Graph of the job")
        hint = page.get_by_text("Scroll sideways for the rest of the graph.")
        left, right = graph.get_by_role("link", name="count"), graph.get_by_role("link", name="sink")
        right.wait_for()
        assert not hint.is_visible() and right.bounding_box()["x"] > left.bounding_box()["x"]  # type: ignore[index]
        page.set_viewport_size({"width": 400, "height": 900})
        until(lambda: right.bounding_box()["y"] > left.bounding_box()["y"] + left.bounding_box()["height"])  # type: ignore[index]
        assert not hint.is_visible(), "in a narrow window it goes down"
        tabs = page.get_by_role("navigation", name="About the job")
        until(lambda: tabs.get_attribute("data-more") == "right")
        tabs.get_by_role("link", name="Configuration").focus()
        page.keyboard.press("Enter")
        until(lambda: tabs.get_attribute("data-more") == "left")
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        tab(page, "Graph")
        right.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 400, "the page itself does not scroll sideways"
        flowed = page.get_by_role("region", name="Rows by edge")
        assert flowed.get_attribute("data-more") == "right"
        assert page.evaluate("getComputedStyle(document.querySelector('[data-more=right]')).maskImage") != "none"
        flowed.evaluate("(element) => element.scrollTo(100, 0)")
        until(lambda: flowed.get_attribute("data-more") == "left right")
        page.wait_for_timeout(2500)
        assert flowed.get_attribute("data-more") == "left right", "what comes meanwhile leaves it there"
        page.set_viewport_size({"width": 800, "height": 900})
        hint.wait_for()
        assert graph.get_attribute("data-more") == "right"
        graph.evaluate("(element) => element.scrollTo(10000, 0)")
        until(lambda: graph.get_attribute("data-more") == "left")


def test_labels_of_edges_do_not_cover_each_other(browser: Any, start: Callable[..., Running]) -> None:
    job = start()

    def node(name: str, *inputs: str) -> dict[str, Any]:
        edge = {"ship_strategy": "HASH", "exchange": "blocking", "last-records": 300, "last-bytes": 4000}
        edges = [{"id": one, **edge} for one in inputs]
        return {"id": name, "description": name, "operator": "narrow", "parallelism": 1, "inputs": edges}

    def with_two_ways(route: Any) -> None:
        found = route.fetch()
        job = found.json()
        job["plan"]["nodes"] = [
            *(node("texts"), node("split", "texts")),
            *(node("files"), node("read", "files"), node("split files", "read")),
            node("count", "split", "split files"),
        ]
        route.fulfill(response=found, json=job)

    with visitor(browser) as page:
        page.route(re.compile(r"/jobs/\w+\?watch"), with_two_ways)
        log_in(page, job)
        labels = page.get_by_role("region", name="Graph of the job").locator("svg text")
        labels.get_by_text("300 rows").nth(4).wait_for()
        boxes = [box for label in labels.all() if (box := label.bounding_box())]
        page.unroute_all(behavior="wait")
        covered = [
            (one, other)
            for one, other in combinations(boxes, 2)
            if abs(one["x"] - other["x"]) < min(one["width"], other["width"])
            and abs(one["y"] - other["y"]) < min(one["height"], other["height"]) / 2
        ]
        assert covered == []


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    delay = {f"restart-strategy.fixed-delay.{name}": value for name, value in (("attempts", 1000), ("delay", "20 ms"))}
    job = Running(
        tmp_path_factory.mktemp("judged"), event_time=True, **{"restart-strategy.type": "fixed-delay"}, **delay
    )
    job.engine.inputs.append({"words": ["poison"]})
    until(lambda: job.client.get()["restarts"])
    job.engine.inputs[1] = {"words": ["kelp", "sand", "silt"]}
    until(lambda: job.client.get("epochs")["total"] >= 2)
    yield job
    job.end()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280, 1920])
def test_axe_finds_nothing_in_any_view(browser: Any, judged: Running, width: int, scheme: Any) -> None:
    with visitor(browser, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        page.goto(judged.client.address.url)
        page.get_by_label("Bearer token").wait_for()
        assert violations(page) == [], "the token"
        log_in(page, judged)
        graph = page.get_by_role("region", name="Graph of the job")
        graph.get_by_role("link", name="count").click()
        cells(page, "Subtasks, the busiest first")
        assert violations(page) == [], "Graph"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for name, shown in {
            "Epochs": ".uplot canvas",
            "Checkpoints": "tbody a",
            "State": "tbody a",
            "Exceptions": "pre",
            "Log": "pre",
            "Configuration": "tbody",
        }.items():
            tab(page, name)
            page.locator(shown).first.wait_for()
            if name in ("Checkpoints", "State"):
                page.locator(shown).first.click()
                page.get_by_role("region", name="Rows of count" if name == "State" else "Sizes by state").wait_for()
            assert violations(page) == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        page.get_by_role("button", name="Rescale", exact=True).click()
        page.get_by_role("button", name="Rescale", exact=True).last.wait_for()
        assert violations(page) == [], "a dialog"


def test_labels_of_charts_are_round_and_not_cut(browser: Any, judged: Running) -> None:
    with visitor(browser) as page:
        page.add_init_script(RECORD_LABELS)
        log_in(page, judged)
        tab(page, "Epochs")
        page.get_by_role("group", name="Watermark lag").locator("canvas").wait_for()
        until(lambda: {"10,000 d", "20,000 d"} <= set(drawn_labels(page)))


def test_charts_of_one_epoch_have_the_time_of_day(browser: Any, start: Callable[..., Running]) -> None:
    job = start()
    with visitor(browser, timezone_id="UTC") as page:
        page.add_init_script(RECORD_LABELS)
        log_in(page, job)
        tab(page, "Epochs")
        page.get_by_role("group", name="Rows a second").locator("canvas").wait_for()
        [epoch] = job.client.get("epochs")["epochs"]
        ended = datetime.fromtimestamp((epoch["started"] + epoch["duration_ms"]) / 1000, UTC)
        until(lambda: any(text.startswith(f"{ended - timedelta(seconds=5):%H:%M:}") for text in drawn_labels(page)))


def test_a_failure_is_shown_with_the_traceback_of_the_function(browser: Any, start: Callable[..., Running]) -> None:
    job = start(**{"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "4 s",
                   "restart-strategy.fixed-delay.attempts": 1000000})  # fmt: skip
    job.say("poison")
    with visitor(browser) as page:
        log_in(page, job)
        page.get_by_role("link", name="Last failure").click()
        text = page.locator("pre").first.inner_text()
        assert 'raise ValueError("this word is poison")' in text
        assert text.splitlines()[-1] == "ValueError: this word is poison"
        page.get_by_text("operator keyed_process count").first.wait_for()
        job.engine.inputs[1] = {"words": ["sand"]}
        until(lambda: job.client.get()["tries-in-a-row"] == 0)
        page.get_by_role("link", name="Last failure").wait_for(state="detached")
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("button", name="Cancel the job").click()
        page.get_by_role("alert").get_by_text("(CANCELED)").wait_for()
        assert page.get_by_role("link", name="Last failure").count() == 0, "it had recovered"


def test_names_with_markup_are_shown_as_text(browser: Any, start: Callable[..., Running]) -> None:
    job = start(EVIL)
    job.say(EVIL)
    until(lambda: job.client.get("epochs")["total"] == 2)
    with visitor(browser) as page:
        log_in(page, job)
        for name in TABS:
            tab(page, name)
            page.locator(".tab > *").first.wait_for()
        tab(page, "State")
        page.get_by_role("region", name="States").get_by_role("link", name="count").click()
        assert EVIL in [row[0] for row in cells(page, "Rows of count")]
        page.get_by_role("button", name="Cancel", exact=True).click()
        assert EVIL in page.get_by_role("dialog").inner_text()
        assert page.locator("img").count() == 1, "the sign of Holdfast"
        assert page.locator("main b, dialog b").count() == 0


def test_the_token_is_requested_until_it_is_right_and_ends_with_the_tab(
    browser: Any, start: Callable[..., Running]
) -> None:
    job = start()
    url, token = job.client.address.url, job.client.address.bearer_token
    with visitor(browser) as page:
        page.goto(url)
        page.get_by_label("Bearer token").fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("was not right").wait_for()
        page.keyboard.press("Escape")
        page.get_by_label("Bearer token").fill(token)
        page.keyboard.press("Enter")
        page.get_by_role("heading", level=1, name="words").wait_for()
        assert token not in page.url
        assert page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"
        page.reload()
        page.get_by_role("heading", level=1, name="words").wait_for()
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Bearer token").wait_for()
    with visitor(browser) as page:
        page.goto(url)
        page.get_by_label("Bearer token").wait_for()


def test_the_page_removes_the_token_from_its_url_at_once(
    browser: Any, start: Callable[..., Running], tmp_path: Path
) -> None:
    job = start()
    address = job.client.address
    found = holdfast("ui", tmp_path, "--no-browser")
    with visitor(browser) as page:
        page.goto(found.stdout.strip())
        page.get_by_role("heading", level=1, name="words").wait_for()
        assert page.url == f"{address.url}/#/job/{address.job_id}"
        assert page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Bearer token").wait_for()
        page.goto(f"{address.url}/#token={address.bearer_token}")  # in the tab that asks for a token
        page.get_by_role("heading", level=1, name="words").wait_for()
        assert address.bearer_token not in page.url
    leads = tmp_path / "leads.html"
    leads.write_text(f'<meta http-equiv="refresh" content="0;url={found.stdout.strip().replace("&", "&amp;")}">')
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(leads.as_uri())
        page.get_by_role("heading", level=1, name="words").wait_for()


def test_everything_is_reached_with_the_keyboard_and_the_focus_is_seen(
    browser: Any, start: Callable[..., Running]
) -> None:
    job = start()
    with visitor(browser) as page:
        log_in(page, job)
        cells(page, "Rows by edge")
        page.reload()
        cells(page, "Rows by edge")
        reached: list[str] = []
        for _ in range(40):
            page.keyboard.press("Tab")
            name, outline = page.evaluate(
                "() => { const on = document.activeElement; const style = getComputedStyle(on);"
                " return [on.innerText.split('\\n')[0], `${style.outlineStyle} ${style.outlineWidth}`]; }"
            )
            if name == "Skip to the content" and reached:
                break
            assert outline.startswith("solid 2px") or name == "", (name, outline)
            reached.append(name)
        for wanted in (
            "Skip to the content",
            "Holdfast",
            "Savepoint",
            "Rescale",
            "Stop",
            "Cancel",
            *TABS,
            "keyed_process",
        ):
            assert wanted in reached, reached

        page.get_by_role("button", name="Cancel", exact=True).focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.innerText") == "Back", "Enter again does no harm"
        for _ in range(5):
            page.keyboard.press("Tab")
            assert page.evaluate(
                "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
            )
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
        assert page.evaluate("document.activeElement.innerText") == "Cancel", "the focus is where it was"
        page.wait_for_timeout(2500)
        assert page.evaluate("document.activeElement.innerText") == "Cancel", "what comes meanwhile leaves it there"
        assert job.master.status.value == "RUNNING"


CONTRAST = """() => {
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const parts = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest("svg, .uplot, :disabled, .unseen")) continue;
    const [one, other] = [light(parts(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    const what = `${element.tagName}.${element.className} ${ratio.toFixed(2)}: ${element.innerText.slice(0, 40)}`;
    if (ratio < 4.5) faint.push(what);
  }
  return [light(behind(document.body)), faint];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_light_or_dark_as_the_system_is_and_can_be_read(
    browser: Any, start: Callable[..., Running], scheme: Any
) -> None:
    job = start()
    with visitor(browser, color_scheme=scheme) as page:
        log_in(page, job)
        for name in TABS:
            tab(page, name)
            page.locator(".tab > *").first.wait_for()
            page.wait_for_timeout(300)
            lightness, faint = page.evaluate(CONTRAST)
            assert (lightness > 0.5) == (scheme == "light")
            assert faint == [], name
        page.get_by_role("button", name="Stop", exact=True).click()
        assert page.evaluate(CONTRAST)[1] == []


def test_a_thousand_subtasks_are_shown(browser: Any, start: Callable[..., Running]) -> None:
    job = start()
    # As after an epoch of so many tasks, which would take a minute in one process.
    reports = [StepReport("count", subtask, records_in=subtask % 7, busy=1000 * subtask) for subtask in range(1000)]
    barriers = tuple(TaskReport(1, report.subtask, "attempt", (report,)) for report in reports)
    told: Any = None
    job.master.flow.on_epoch_accepted(EpochResult(told, EpochReport((barriers,)), 3000))
    with visitor(browser) as page:
        log_in(page, job)
        graph = page.get_by_role("region", name="Graph of the job")
        graph.get_by_text("1,000 subtasks").first.wait_for()
        graph.get_by_role("link", name="keyed_process").click()
        shown = cells(page, "Subtasks, the busiest first")
        assert [row[0] for row in shown] == [str(subtask) for subtask in range(999, 949, -1)]
        assert page.locator(".bars").first.locator("rect").count() == 1000
        page.get_by_role("button", name="Show 950 more").click()
        page.wait_for_function("document.querySelectorAll('.subtasks tbody tr').length === 1000")
        rows = page.evaluate(
            "[...document.querySelectorAll('.subtasks tbody tr')].map((row) => row.cells[1].innerText)"
        )
        assert sum(map(int, rows)) == sum(report.records_in for report in reports) + 2


class Led:
    """What a dispatcher knows of two hundred jobs."""

    is_ready = True
    session, since = "session", 1_700_000_000_000

    def __init__(self) -> None:
        restarts = restart_strategy_from(Configuration({}), SystemClock())
        phases = [*[Phase.RUNNING] * 3, Phase.STARTING]
        self.entries = [
            JobEntry(
                JobID.from_name(name), name, None, restarts, restarts, 1_700_000_000_000 + number, phases[number % 4]
            )
            for number, name in enumerate(f"job {number}" for number in range(200))
        ]
        self.entries[-1].was_taken_over = True
        self.dispatcher = self.stores = self.processes = self

    def jobs(self) -> list[JobEntry]:
        return self.entries


def test_two_hundred_jobs_are_listed_and_found(browser: Any) -> None:
    led: Any = Led()
    server = RestServer(JobManagerApi(lambda: led), "sesame")
    url = server.start()
    try:
        with visitor(browser) as page:
            page.goto(url)
            page.get_by_label("Bearer token").fill("sesame")
            page.keyboard.press("Enter")
            page.get_by_text("200 of 200 jobs, 150 running").wait_for()
            assert len(cells(page, "Jobs")) == 200
            page.get_by_text("No job has ended yet.").wait_for()
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                for width in (400, 1920, 1280):
                    page.set_viewport_size({"width": width, "height": 900})
                    assert violations(page) == [], (scheme, width)
                    assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.get_by_text(re.compile("^leading job manager .* jobs taken over: 1$")).wait_for()
            page.get_by_label("Filter").fill("job 19")
            page.get_by_text("11 of 200 jobs").wait_for()
            page.get_by_label("State").select_option("INITIALIZING")
            page.get_by_text("4 of 200 jobs").wait_for()
            assert [row[0] for row in cells(page, "Jobs")] == ["job 199", "job 195", "job 191", "job 19"]
            led.is_ready = False
            page.get_by_role("alert").get_by_text("leader election").wait_for()
            assert len(cells(page, "Jobs")) == 4, "what was seen stays"
    finally:
        server.close()


def test_a_job_manager_has_the_same_page_for_jobs_in_processes_of_their_own(browser: Any, tmp_path: Path) -> None:
    cluster = Cluster.without_elections(tmp_path)
    try:
        cluster.start()
        cluster.says(0, "leads, in session")
        inputs, output = tmp_path / "in", tmp_path / "out"
        inputs.mkdir()
        (inputs / "0.txt").write_text("kelp sand kelp")
        program = ROOT / "tests" / "programs" / "submitted_words.py"
        cluster.run("submit", program, "-Dpipeline.name=words", "--", inputs, output)
        [address] = (tmp_path / "manager" / "rest").iterdir()
        said = json.loads(address.read_text())
        with visitor(browser) as page:
            page.goto(said["url"])
            page.get_by_label("Bearer token").fill(said["bearer_token"])
            page.keyboard.press("Enter")
            page.get_by_role("region", name="Jobs").get_by_role("link", name="words").click()
            page.get_by_role("heading", level=1, name="words").wait_for()
            cells(page, "Rows by edge")
            tab(page, "Epochs")
            cells(page, "The newest epochs")
            tab(page, "State")
            cells(page, "States")
            page.get_by_role("button", name="Stop", exact=True).click()
            page.get_by_label("Directory").fill(str(tmp_path / "savepoints"))
            page.get_by_role("button", name="Stop with a savepoint").click()
            told = page.get_by_role("status").get_by_text("Stopped. Savepoint: ").inner_text()
            assert str(tmp_path / "savepoints") in told
            page.get_by_text("SUSPENDED", exact=True).first.wait_for()
            page.get_by_role("alert").get_by_text("(SUSPENDED)").wait_for()
            assert page.get_by_role("button", name="Savepoint", exact=True).is_disabled()
            cells(page, "States")
            tab(page, "Epochs")
            cells(page, "The newest epochs")
            tab(page, "Log")
            page.get_by_role("region", name="Log of the job").get_by_text("holdfast").wait_for()
            page.get_by_role("link", name="Holdfast").click()
            [[name, state, ended, *_]] = cells(page, "Ended jobs, newest first")
            assert (name, state) == ("words", "SUSPENDED") and re.match(r"\d{4}-\d\d-\d\d ", ended)
            page.get_by_text("No job runs. Submit one").wait_for()
            page.reload()
            page.get_by_role("link", name="words").click()
            page.get_by_role("alert").get_by_text("this page has not seen it run").wait_for()
            page.get_by_text("Ran for", exact=True).wait_for()
            assert not page.get_by_role("heading", name="Operators").is_visible(), "no card without contents"
            tab(page, "Log")
            page.get_by_role("region", name="Log of the job").get_by_text("holdfast").wait_for()
    finally:
        cluster.close()
