"""Hooks of the documentation site, which `make docs` builds from `docs/`.

Pages link to files of the repository, so that they work where the repository is read. The site has the pages of `docs/`
and those of `INCLUDED`. A link to any other file becomes a link to the repository if `repo_url` is set, and the name of
the file otherwise.

Readers need no other host: pages with a diagram load Mermaid from the site, and the build fails if a page loads a
script, a style sheet, a font or an image from elsewhere.
"""

from __future__ import annotations

import posixpath
import re
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent

INCLUDED: Final = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "benchmarks/RESULTS.md": "benchmarks/index.md",
    **{f"benchmarks/results/{page.name}": f"benchmarks/{page.name}" for page in ROOT.glob("benchmarks/results/*.md")},
    "deploy/kubernetes/README.md": "deploy/kubernetes.md",
    "examples/README.md": "examples.md",
}
"""Pages outside `docs/`, by their path in the repository, with their path on the site."""

DECISIONS: Final = "decisions/README.md"

MERMAID: Final = {"mermaid.min.js": "dist/mermaid.min.js", "mermaid.LICENSE.txt": "LICENSE"}
"""Files of the site in `javascripts`, by their place in Mermaid's package."""

_SKIPPED_OR_LINK: Final = re.compile(
    r"^(?P<fence>```+)(?P<info>[^\n]*)(?P<code>\n.*?^(?P=fence)[ \t]*$)"
    r"|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)(?!\]\()"  # code in a line, unless it ends the text of a link
    r"|\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_DIAGRAM: Final = '<pre class="mermaid">'
_LOADED: Final = re.compile(
    r"<(?:script|img|iframe|source|video|audio|object|embed)\b[^>]*?\s(?:src|data|srcset)=[\"']?((?:https?:)?//[^\s\"'>]+)"
    r"|<link\b(?![^>]*\brel=[\"']?(?:canonical|prev|next))[^>]*?\shref=[\"']?((?:https?:)?//[^\s\"'>]+)"
    r"|(?:@import\s+|\burl\()[\"']?((?:https?:)?//[^\s\"')]+)",
    re.IGNORECASE,
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the decisions into the navigation, under the headings of their index."""
    index = (ROOT / "docs" / DECISIONS).read_text(encoding="utf-8")
    config.nav = _with_decisions(config.nav, decisions_by_subject(index))
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the included pages."""
    from mkdocs.structure.files import File

    for source, target in INCLUDED.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    for name, content in _mermaid().items():
        files.append(File.generated(config, f"javascripts/{name}", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links that would lead out of the site, and what Markdown here does not know."""
    return for_the_site(markdown, page.file.src_uri, config.repo_url)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Let pages with a diagram load Mermaid from the site, which the theme would load from another host."""
    return with_mermaid(output, page.url)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Fail if the site loads anything from another host."""
    from mkdocs.exceptions import PluginError

    site = Path(config.site_dir)
    found = {
        f"{path.relative_to(site)}: {address}"
        for pattern in ("*.html", "*.css")
        for path in site.rglob(pattern)
        for address in loaded_from_elsewhere(path.read_text(encoding="utf-8"))
    }
    if found:
        raise PluginError("The site loads from other hosts:\n" + "\n".join(sorted(found)))


def with_mermaid(output: str, url: str) -> str:
    """Return the HTML of a page with Mermaid's script if the page has a diagram.

    Args:
        output: The HTML.
        url: The address of the page, relative to the site.
    """
    if _DIAGRAM not in output:
        return output
    script = posixpath.relpath("javascripts/mermaid.min.js", url or ".")
    # Deferred scripts run before the theme looks for diagrams, which is when the whole page is there.
    return output.replace("</head>", f'<script defer src="{script}"></script></head>', 1)


def loaded_from_elsewhere(text: str) -> list[str]:
    """Return the addresses of other hosts from which HTML or CSS loads something, without links that readers follow."""
    return [next(filter(None, found)) for found in _LOADED.findall(text)]


def _mermaid() -> dict[str, bytes]:
    [jar] = Path(sys.prefix, "mermaid").glob("mermaid-*.jar")
    version = jar.stem.removeprefix("mermaid-")
    with zipfile.ZipFile(jar) as package:
        return {
            name: package.read(f"META-INF/resources/webjars/mermaid/{version}/{place}")
            for name, place in MERMAID.items()
        }


def decisions_by_subject(index: str) -> list[dict[str, Any]]:
    """Return the entries of the navigation for an index of decisions: a section for each heading."""
    _, *sections = re.split(r"^## ", index, flags=re.MULTILINE)
    return [
        {section.partition("\n")[0]: [f"decisions/{name}" for name in re.findall(r"\]\((\d{4}-[^)]+\.md)\)", section)]}
        for section in sections
    ]


def _with_decisions(entries: Any, sections: list[dict[str, Any]]) -> Any:
    if isinstance(entries, dict):
        return {title: _with_decisions(entry, sections) for title, entry in entries.items()}
    if not isinstance(entries, list):
        return entries
    placed = [_with_decisions(entry, sections) for entry in entries]
    return [*placed, *sections] if DECISIONS in placed else placed


def for_the_site(markdown: str, page: str, repository: str | None) -> str:
    """Return the text of a page with links and code blocks that work on the site.

    Of the words after the three backticks of a block, such as ``python spark``, only the language stays.

    Args:
        markdown: The text, with links that are relative to the page's file in the repository.
        page: The path of the page on the site.
        repository: The address of the repository; None if it has none.
    """
    source = next((path for path, place in INCLUDED.items() if place == page), f"docs/{page}")

    def replaced(found: re.Match[str]) -> str:
        if found["fence"]:
            return found["fence"] + found["info"].strip().partition(" ")[0] + found["code"]
        target = found["target"]
        if target is None or target.startswith("#") or _SCHEME.match(target):
            return found[0]
        path, hash_sign, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        place = _place_on_the_site(path)
        text = for_the_site(found["text"], page, repository) if "](" in found["text"] else found["text"]
        if place is not None:
            return f"[{text}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{hash_sign}{anchor})"
        if repository:
            return f"[{text}]({repository.rstrip('/')}/blob/HEAD/{path}{hash_sign}{anchor})"
        return text if posixpath.basename(path) in text else f"{text} (`{path}`)"

    return _SKIPPED_OR_LINK.sub(replaced, markdown)


def _place_on_the_site(path: str) -> str | None:
    """Return where a file of the repository is on the site; None if it is not there."""
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else INCLUDED.get(path)
