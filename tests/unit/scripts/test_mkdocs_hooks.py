"""Pages of the repository on the site: their links, their code blocks, and the navigation of the decisions."""

from __future__ import annotations

import pytest

from scripts.mkdocs_hooks import (
    DECISIONS,
    INCLUDED,
    ROOT,
    decisions_by_subject,
    for_the_site,
    loaded_from_elsewhere,
    with_mermaid,
)

REPOSITORY = "https://example.org/holdfast/"


@pytest.mark.parametrize(
    ("page", "link"),
    [
        ("guide.md", "[sinks](guide/sinks.md#filesink)"),
        ("guide/time.md", "[why](../decisions/0018-windows-by-columns.md)"),
        ("guide.md", "[below](#uids)"),
        ("guide.md", "[Spark](https://spark.apache.org/docs#top)"),
        ("guide.md", "![chart](speed.svg)"),
    ],
)
def test_links_that_stay_on_the_site_are_as_they_were(page: str, link: str) -> None:
    assert for_the_site(f"See {link}.", page, None) == f"See {link}."


def test_a_link_to_a_page_outside_of_docs_leads_to_its_place_on_the_site() -> None:
    found = for_the_site(
        "[results](../../benchmarks/RESULTS.md#real-time), [start](../../README.md)", "guide/x.md", None
    )
    assert found == "[results](../benchmarks/index.md#real-time), [start](../index.md)"


def test_a_page_outside_of_docs_links_from_its_place_in_the_repository() -> None:
    text = "[guide](docs/guide.md#uids), ![chart](docs/speed.svg), [examples](examples/README.md)"
    assert for_the_site(text, "contributing.md", None) == (
        "[guide](guide.md#uids), ![chart](speed.svg), [examples](examples.md)"
    )
    assert for_the_site("[scale](../docs/scale.md)", "benchmarks/index.md", None) == "[scale](../scale.md)"


def test_a_link_to_another_file_becomes_its_name() -> None:
    text = "[`job.py`](../examples/payments/job.py), [a\ntest](../tests/unit/test_names.py), [b](../src)"
    assert for_the_site(text, "guide.md", None) == "`job.py`, a\ntest (`tests/unit/test_names.py`), b (`src`)"


def test_a_link_to_another_file_leads_to_the_repository_if_it_has_an_address() -> None:
    found = for_the_site("[`job.py`](../../examples/job.py#L7)", "guide/x.md", REPOSITORY)
    assert found == "[`job.py`](https://example.org/holdfast/blob/HEAD/examples/job.py#L7)"


def test_code_is_left_alone() -> None:
    code = "`[x](../src/y.py)` and\n\n```text\n[x](../src/y.py)\n```\n\n    [`z`]\n"
    assert for_the_site(code, "guide.md", None) == code


def test_the_second_word_of_a_block_of_code_is_dropped() -> None:
    assert for_the_site("```python spark\nx = 1\n```\n", "guide.md", None) == "```python\nx = 1\n```\n"


def test_each_decision_is_in_the_navigation_once() -> None:
    sections = decisions_by_subject((ROOT / "docs" / DECISIONS).read_text(encoding="utf-8"))
    named = [page for section in sections for pages in section.values() for page in pages]
    assert sorted(named) == sorted(f"decisions/{page.name}" for page in (ROOT / "docs" / "decisions").glob("0*.md"))
    assert {"How an epoch runs", "Output"} <= {title for section in sections for title in section}


def test_the_included_pages_exist() -> None:
    assert [page for page in INCLUDED if not (ROOT / page).is_file()] == []


@pytest.mark.parametrize(("url", "script"), [("", "javascripts"), ("concepts/epochs/", "../../javascripts")])
def test_a_page_with_a_diagram_loads_mermaid_from_the_site(url: str, script: str) -> None:
    page = '<head></head><body><pre class="mermaid"><code>flowchart LR</code></pre></body>'
    assert f'<script defer src="{script}/mermaid.min.js"></script></head>' in with_mermaid(page, url)
    assert with_mermaid("<head></head>", url) == "<head></head>"


@pytest.mark.parametrize(
    "text",
    [
        '<script async src="https://example.org/x"></script>',
        "<script src=//example.org/x></script>",
        '<link rel="stylesheet" href="https://example.org/x">',
        '<img alt="a" src="http://example.org/x">',
        "@font-face { src: url('https://example.org/x') }",
        '@import "https://example.org/x";',
    ],
)
def test_what_a_page_loads_from_another_host_is_found(text: str) -> None:
    [found] = loaded_from_elsewhere(text)
    assert found.endswith("//example.org/x")


def test_links_and_files_of_the_site_are_not_loaded_from_another_host() -> None:
    text = (
        '<a href="https://example.org/x">x</a> <link rel="canonical" href="https://example.org/x">'
        '<script src="../javascripts/x.js"></script> <img src="x.svg"> <code>src="https://example.org/x"</code>'
        '<svg xmlns="http://www.w3.org/2000/svg"><use href="#x"/></svg> url(../fonts/x.woff2)'
    )
    assert loaded_from_elsewhere(text) == []
