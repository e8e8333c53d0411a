"""The manifests of Kubernetes may be given to `kubectl` in one piece, as the page on deploying does."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import yaml

from tests.stories.process import ROOT

DIRECTORY = ROOT / "deploy/kubernetes"


def kinds(text: str) -> list[tuple[str, str]]:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(text))
    return [(document["kind"], document["metadata"]["name"]) for document in documents]


def test_no_document_is_lost_where_one_file_follows_another() -> None:
    files = sorted(DIRECTORY.glob("*.yaml"))
    assert len(files) == 4
    together = "".join(file.read_text() for file in files)
    assert kinds(together) == [kind for file in files for kind in kinds(file.read_text())]


def test_what_the_page_gives_to_kubectl_has_the_rights_and_the_job_managers() -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    found = re.search(r"^    (for file in .*?^    done) \| kubectl apply -f -$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    given = subprocess.run(["sh", "-euc", found[1]], cwd=DIRECTORY, capture_output=True, text=True, check=True).stdout
    assert kinds(given) == [
        ("ServiceAccount", "prod-holdfast"),
        ("Role", "prod-holdfast"),
        ("RoleBinding", "prod-holdfast"),
        ("Role", "prod-spark"),
        ("RoleBinding", "prod-spark"),
        ("Service", "prod-jobmanager"),
        ("PodDisruptionBudget", "prod-jobmanager"),
        ("StatefulSet", "prod-jobmanager"),
    ]
    assert "my-" not in re.sub(r"^ *#.*$", "", given, flags=re.MULTILINE)


def test_the_head_of_each_file_takes_the_name_of_any_image() -> None:
    for file in DIRECTORY.glob("job*.yaml"):
        found = re.search(r"^#   sed '([^']*)'", file.read_text(), re.MULTILINE)
        assert found is not None
        command = found[1].replace("IMAGE", "registry.example:5000/a/b")
        made = subprocess.run(["sed", command, file], capture_output=True, text=True, check=True).stdout
        assert "image: registry.example:5000/a/b\n" in made
