"""The documented behaviour of the API that Holdfast builds on, as any cluster shows it: the double or a real one.

What stands here is the reason to believe the other tests of this folder: they rest on the double.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from holdfast.testing.leader_election_contract import eventually
from tests.services.kubernetes.cluster import KubernetesCluster

pytestmark = pytest.mark.services

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class Api:
    """Requests to one namespace, with what they answer."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self.cluster = cluster
        self.maps = cluster.path("configmaps")
        self.leases = cluster.path("leases")

    def ok(self, method: str, path: str, body: object = None, **rest: Any) -> dict[str, Any]:
        answer = self.cluster.request(method, path, body, **rest)
        assert answer.status_code in (200, 201), answer.text
        read: dict[str, Any] = answer.json()
        return read

    def refused(self, method: str, path: str, body: object = None, **rest: Any) -> dict[str, Any]:
        """The Status of a refusal."""
        answer = self.cluster.request(method, path, body, **rest)
        assert answer.status_code >= 400, answer.text
        status: dict[str, Any] = answer.json()
        assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
        assert status["code"] == answer.status_code
        return status

    def create(self, name: str, data: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
        return self.ok("POST", self.maps, {"metadata": {"name": name, **metadata}, "data": data or {}})

    def one(self, name: str) -> str:
        return f"{self.maps}/{name}"

    def watch(self, version: str | None, seconds: int = 1, **query: str) -> list[dict[str, Any]]:
        """All events of a watch until its time limit."""
        query = {"watch": "true", "timeoutSeconds": str(seconds), **query}
        if version is not None:
            query["resourceVersion"] = version
        answer = self.cluster.request("GET", self.maps, **query)
        assert answer.status_code == 200, answer.text
        events = [json.loads(line) for line in answer.text.splitlines()]
        # A real cluster puts this one into every namespace, some time after it was created.
        return [event for event in events if event["object"]["metadata"].get("name") != "kube-root-ca.crt"]


@pytest.fixture
def api(cluster: KubernetesCluster) -> Api:
    return Api(cluster)


def version_of(value: dict[str, Any]) -> str:
    version: str = value["metadata"]["resourceVersion"]
    return version


# Creating and reading.


def test_an_object_is_created_once_with_what_the_server_adds(api: Api) -> None:
    made = api.create("a", {"x": "1"}, labels={"app": "test"})
    assert made["kind"] == "ConfigMap"
    assert made["metadata"]["namespace"] == api.cluster.namespace
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert version_of(made).isdigit()
    assert api.ok("GET", api.one("a"))["data"] == {"x": "1"}
    status = api.refused("POST", api.maps, {"metadata": {"name": "a"}})
    assert (status["code"], status["reason"]) == (409, "AlreadyExists")
    assert status["details"] == {"name": "a", "kind": "configmaps"}
    assert status["message"] == 'configmaps "a" already exists'


def test_what_is_not_there_is_not_found(api: Api) -> None:
    for method, body in (("GET", None), ("DELETE", None), ("PUT", {"metadata": {"name": "no"}})):
        status = api.refused(method, api.one("no"), body)
        assert (status["code"], status["reason"]) == (404, "NotFound")
        assert status["message"] == 'configmaps "no" not found'
    assert api.refused("PATCH", api.one("no"), {}, content_type=MERGE)["code"] == 404
    nowhere = "/api/v1/namespaces/holdfast-does-not-exist/configmaps"
    assert api.ok("GET", nowhere)["items"] == []
    assert api.refused("POST", nowhere, {"metadata": {"name": "a"}})["code"] == 404
    assert api.cluster.request("GET", "/apis/nobody.example.com/v1/things").status_code == 404


def test_a_name_can_be_left_to_the_server(api: Api) -> None:
    made = api.ok("POST", api.maps, {"metadata": {"generateName": "lock-"}})
    assert made["metadata"]["name"].startswith("lock-")
    assert len(made["metadata"]["name"]) == len("lock-") + 5


def test_a_version_must_not_be_set_on_create(api: Api) -> None:
    status = api.refused("POST", api.maps, {"metadata": {"name": "a", "resourceVersion": "1"}})
    assert status["code"] == 500
    assert "resourceVersion should not be set on objects to be created" in status["message"]


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "dot-.x", "sp ace", "x" * 254, ""])
def test_bad_names_are_refused(api: Api, name: str) -> None:
    status = api.refused("POST", api.maps, {"metadata": {"name": name}})
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert status["details"]["causes"][0]["field"] == "metadata.name"
    assert status["message"].startswith(f'ConfigMap "{name}" is invalid: metadata.name: ')


@pytest.mark.parametrize("key", ["a/b", "sp ace", "", ".", "..", "..a", "x" * 254])
def test_bad_keys_are_refused(api: Api, key: str) -> None:
    status = api.refused("POST", api.maps, {"metadata": {"name": "a"}, "data": {key: "x"}})
    assert (status["code"], status["reason"]) == (422, "Invalid")


def test_a_config_map_holds_one_mebibyte(api: Api) -> None:
    api.create("full", {"x": "x" * (1024 * 1024)})
    status = api.refused("POST", api.maps, {"metadata": {"name": "over"}, "data": {"x": "x" * (1024 * 1024 + 1)}})
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert "Too long: may not be more than 1048576 bytes" in status["message"]
    status = api.refused("PATCH", api.one("full"), {"data": {"y": "y"}}, content_type=MERGE)
    assert status["code"] == 422
    huge = {"metadata": {"name": "huge"}, "data": {"x": "x" * (4 * 1024 * 1024)}}
    assert api.refused("POST", api.maps, huge)["code"] == 413


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"name": "a"}, "data": {"x": 1}},
        {"metadata": {"name": "a"}, "data": ["x"]},
        {"metadata": {"name": "a"}, "binaryData": {"x": "%%%"}},
        {"metadata": {"name": "a", "labels": "x"}},
        {"kind": "Secret", "metadata": {"name": "a"}},
        {"apiVersion": "v2", "metadata": {"name": "a"}},
        {"metadata": {"name": "a", "namespace": "elsewhere"}},
    ],
)
def test_bodies_that_are_no_config_map_are_bad_requests(api: Api, body: dict[str, Any]) -> None:
    status = api.refused("POST", api.maps, body)
    assert (status["code"], status["reason"]) == (400, "BadRequest")


def test_bodies_that_are_no_json_and_media_types_that_nobody_knows(api: Api) -> None:
    headers = {"Content-Type": "application/json"}
    broken = api.cluster.http.post(api.maps, content=b"{", headers=headers)
    assert (broken.status_code, broken.json()["reason"]) == (400, "BadRequest")
    status = api.refused("POST", api.maps, {"metadata": {"name": "a"}}, content_type="text/css")
    assert (status["code"], status["reason"]) == (415, "UnsupportedMediaType")
    api.create("a")
    assert api.refused("PATCH", api.one("a"), {}, content_type="application/json")["code"] == 415


def test_unknown_fields_are_dropped_or_refused_as_the_client_asks(api: Api) -> None:
    body = {"metadata": {"name": "a"}, "surprise": 1}
    assert api.refused("POST", api.maps, body, fieldValidation="Strict")["code"] == 400
    assert "surprise" not in api.ok("POST", api.maps, body)


# Updating under optimistic locking.


def test_an_update_of_a_version_that_is_over_is_in_conflict(api: Api) -> None:
    first = api.create("a", {"x": "1"})
    second = api.ok("PUT", api.one("a"), {**first, "data": {"x": "2"}})
    assert version_of(second) != version_of(first)
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert second["metadata"]["creationTimestamp"] == first["metadata"]["creationTimestamp"]
    status = api.refused("PUT", api.one("a"), {**first, "data": {"x": "3"}})
    assert (status["code"], status["reason"]) == (409, "Conflict")
    assert status["details"] == {"name": "a", "kind": "configmaps"}
    assert status["message"] == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to '
        "the latest version and try again"
    )
    assert api.ok("GET", api.one("a"))["data"] == {"x": "2"}


def test_an_update_without_a_version_is_unconditional(api: Api) -> None:
    api.create("a", {"x": "1", "y": "1"})
    assert api.ok("PUT", api.one("a"), {"metadata": {"name": "a"}, "data": {"x": "2"}})["data"] == {"x": "2"}


def test_an_update_that_changes_nothing_makes_no_version(api: Api) -> None:
    made = api.create("a", {"x": "1"})
    assert version_of(api.ok("PUT", api.one("a"), made)) == version_of(made)
    assert version_of(api.ok("PATCH", api.one("a"), {"data": {"x": "1"}}, content_type=MERGE)) == version_of(made)
    assert api.watch(version_of(made)) == []


def test_an_update_of_another_object_of_that_name_is_in_conflict(api: Api) -> None:
    made = api.create("a")
    api.ok("DELETE", api.one("a"))
    again = api.create("a")
    status = api.refused("PUT", api.one("a"), made)
    assert status["code"] == 409
    body = {"metadata": {"name": "a", "uid": made["metadata"]["uid"]}}
    assert api.refused("PUT", api.one("a"), body)["code"] == 409
    assert again["metadata"]["uid"] != made["metadata"]["uid"]


def test_the_name_in_the_body_is_that_of_the_path(api: Api) -> None:
    api.create("a")
    assert api.refused("PUT", api.one("a"), {"metadata": {"name": "b"}})["code"] == 400
    assert api.refused("PUT", api.one("a"), {"metadata": {"name": "a", "namespace": "other"}})["code"] == 400


def test_an_immutable_config_map_stays_as_it_is(api: Api) -> None:
    made = api.ok("POST", api.maps, {"metadata": {"name": "a"}, "data": {"x": "1"}, "immutable": True})
    assert api.refused("PUT", api.one("a"), {**made, "data": {"x": "2"}})["code"] == 422
    assert api.refused("PUT", api.one("a"), {**made, "immutable": False})["code"] == 422
    api.ok("PATCH", api.one("a"), {"metadata": {"labels": {"l": "1"}}}, content_type=MERGE)


def test_a_dry_run_changes_nothing(api: Api) -> None:
    api.ok("POST", api.maps, {"metadata": {"name": "a"}}, dryRun="All")
    assert api.refused("GET", api.one("a"))["code"] == 404
    assert api.refused("POST", api.maps, {"metadata": {"name": "A"}}, dryRun="All")["code"] == 422


# Patching.


def test_a_merge_patch_puts_and_removes(api: Api) -> None:
    api.create("a", {"x": "1", "y": "1"})
    patched = api.ok("PATCH", api.one("a"), {"data": {"x": "2", "y": None, "z": "3"}}, content_type=MERGE)
    assert patched["data"] == {"x": "2", "z": "3"}


def test_a_version_in_a_patch_is_a_condition(api: Api) -> None:
    first = api.create("a", {"x": "1"})
    patch = {"metadata": {"resourceVersion": version_of(first)}, "data": {"x": "2"}}
    for content_type in (MERGE, STRATEGIC):
        now = api.ok("GET", api.one("a"))
        patch = {"metadata": {"resourceVersion": version_of(now)}, "data": {"x": content_type}}
        api.ok("PATCH", api.one("a"), patch, content_type=content_type)
        status = api.refused("PATCH", api.one("a"), {**patch, "data": {"x": "no"}}, content_type=content_type)
        assert (status["code"], status["reason"]) == (409, "Conflict")
    stale = [{"op": "replace", "path": "/metadata/resourceVersion", "value": version_of(first)}]
    assert api.refused("PATCH", api.one("a"), stale, content_type=JSON_PATCH)["code"] == 409


def test_a_json_patch_is_applied_whole_or_not_at_all(api: Api) -> None:
    made = api.create("a", {"x": "1"}, annotations={"a/b": "c"})
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version_of(made)},
        {"op": "replace", "path": "/data/x", "value": "2"},
        {"op": "add", "path": "/data/y", "value": "3"},
        {"op": "remove", "path": "/metadata/annotations/a~1b"},
    ]
    patched = api.ok("PATCH", api.one("a"), patch, content_type=JSON_PATCH)
    assert patched["data"] == {"x": "2", "y": "3"}
    assert "annotations" not in patched["metadata"]
    status = api.refused("PATCH", api.one("a"), patch, content_type=JSON_PATCH)
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert api.refused("PATCH", api.one("a"), {"op": "add"}, content_type=JSON_PATCH)["code"] == 400
    assert api.ok("GET", api.one("a"))["data"] == {"x": "2", "y": "3"}


def test_a_strategic_merge_patch_knows_lists_and_directives(api: Api) -> None:
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": f"o{n}", "uid": f"uid-{n}"} for n in (1, 2)]
    api.create("a", {"x": "1", "y": "1"}, finalizers=["example.com/a"])
    one = {"metadata": {"ownerReferences": owners[:1], "finalizers": ["example.com/b"]}}
    api.ok("PATCH", api.one("a"), one, content_type=STRATEGIC)
    two = {"metadata": {"ownerReferences": owners[1:]}, "data": {"$patch": "replace", "z": "1"}}
    patched = api.ok("PATCH", api.one("a"), two, content_type=STRATEGIC)
    assert {owner["uid"] for owner in patched["metadata"]["ownerReferences"]} == {"uid-1", "uid-2"}
    assert sorted(patched["metadata"]["finalizers"]) == ["example.com/a", "example.com/b"]
    assert patched["data"] == {"z": "1"}
    free = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a", "example.com/b"]}}
    assert "finalizers" not in api.ok("PATCH", api.one("a"), free, content_type=STRATEGIC)["metadata"]


# Deleting.


def test_a_delete_may_have_conditions(api: Api) -> None:
    first = api.create("a")
    second = api.ok("PATCH", api.one("a"), {"data": {"x": "1"}}, content_type=MERGE)
    for preconditions in ({"resourceVersion": version_of(first)}, {"uid": "another"}):
        status = api.refused("DELETE", api.one("a"), {"preconditions": preconditions})
        assert (status["code"], status["reason"]) == (409, "Conflict")
    exact = {"uid": first["metadata"]["uid"], "resourceVersion": version_of(second)}
    status = api.ok("DELETE", api.one("a"), {"preconditions": exact})
    assert (status["kind"], status["status"]) == ("Status", "Success")
    assert status["details"]["uid"] == first["metadata"]["uid"]
    assert api.refused("DELETE", api.one("a"))["code"] == 404


def test_a_finalizer_holds_a_deleted_object_until_it_is_removed(api: Api) -> None:
    api.create("a", finalizers=["example.com/wait"])
    api.ok("DELETE", api.one("a"))
    waiting = api.ok("GET", api.one("a"))
    assert waiting["metadata"]["deletionTimestamp"]
    api.ok("PATCH", api.one("a"), {"metadata": {"finalizers": None}}, content_type=MERGE)
    assert api.refused("GET", api.one("a"))["code"] == 404


def test_a_collection_is_deleted_by_label(api: Api) -> None:
    for number in range(4):
        api.create(f"m{number}", labels={"odd": str(number % 2)})
    api.ok("DELETE", api.maps, labelSelector="odd=1")
    left = {item["metadata"]["name"] for item in api.ok("GET", api.maps)["items"]}
    assert {"m0", "m2"} <= left and not {"m1", "m3"} & left


# Listing.


def names(listed: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


def test_lists_are_selected_by_labels_and_fields(api: Api) -> None:
    api.create("a", labels={"app": "x", "tier": "1"})
    api.create("b", labels={"app": "y"})
    api.create("c")
    for selector, expected in (
        ("app", {"a", "b"}),
        ("!app", {"c"}),
        ("app=x", {"a"}),
        ("app==x,tier=1", {"a"}),
        ("app!=x", {"b", "c"}),
        ("app in (x,y),tier notin (1)", {"b"}),
    ):
        assert set(names(api.ok("GET", api.maps, labelSelector=selector))) & {"a", "b", "c"} == expected, selector
    assert names(api.ok("GET", api.maps, fieldSelector="metadata.name=b")) == ["b"]
    assert "b" not in names(api.ok("GET", api.maps, fieldSelector="metadata.name!=b"))
    assert api.refused("GET", api.maps, fieldSelector="data.x=1")["code"] == 400
    assert api.refused("GET", api.maps, labelSelector="a b")["code"] == 400


def test_a_long_list_comes_in_chunks_of_one_version(api: Api) -> None:
    for number in range(5):
        api.create(f"m{number}", labels={"chunk": "yes"})
    first = api.ok("GET", api.maps, limit="2", labelSelector="chunk")
    assert names(first) == ["m0", "m1"]
    api.create("m1a", labels={"chunk": "yes"})
    api.ok("DELETE", api.one("m4"))
    second = api.ok("GET", api.maps, limit="2", labelSelector="chunk", **{"continue": first["metadata"]["continue"]})
    third = api.ok("GET", api.maps, limit="2", labelSelector="chunk", **{"continue": second["metadata"]["continue"]})
    assert names(second) + names(third) == ["m2", "m3", "m4"]
    assert "continue" not in third["metadata"]
    assert version_of(first) == version_of(second) == version_of(third)
    assert api.refused("GET", api.maps, limit="2", **{"continue": "nonsense"})["code"] == 400


@pytest.mark.parametrize("query", [{"limit": "x"}, {"watch": "true", "timeoutSeconds": "x"}, {"resourceVersion": "x"}])
def test_parameters_that_are_no_numbers_are_bad_requests(api: Api, query: dict[str, str]) -> None:
    assert api.refused("GET", api.maps, **query)["code"] in (400, 422)


def test_the_items_of_a_list_name_no_kind(api: Api) -> None:
    api.create("a")
    listed = api.ok("GET", api.maps)
    assert listed["kind"] == "ConfigMapList"
    assert all("kind" not in item for item in listed["items"])


# Watching.


def test_a_watch_tells_everything_since_a_version(api: Api) -> None:
    made = api.create("a", {"x": "1"})
    api.ok("PATCH", api.one("a"), {"data": {"x": "2"}}, content_type=MERGE)
    api.create("b")
    api.ok("DELETE", api.one("a"))
    events = api.watch(version_of(made))
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [
        ("MODIFIED", "a"),
        ("ADDED", "b"),
        ("DELETED", "a"),
    ]
    versions = [int(version_of(event["object"])) for event in events]
    assert versions == sorted(set(versions))
    assert events[-1]["object"]["data"] == {"x": "2"}
    assert api.watch(version_of(events[0]["object"]))[0]["object"]["metadata"]["name"] == "b"


def test_a_watch_of_one_name_hears_of_no_other(api: Api) -> None:
    made = api.create("a")
    api.create("b")
    api.ok("PATCH", api.one("a"), {"data": {"x": "2"}}, content_type=MERGE)
    events = api.watch(version_of(made), fieldSelector="metadata.name=a")
    assert [event["type"] for event in events] == ["MODIFIED"]


def test_a_watch_by_label_sees_objects_come_and_go(api: Api) -> None:
    made = api.create("a")
    for label in ("yes", None):
        api.ok("PATCH", api.one("a"), {"metadata": {"labels": {"seen": label}}}, content_type=MERGE)
    events = api.watch(version_of(made), labelSelector="seen")
    assert [event["type"] for event in events] == ["ADDED", "DELETED"]


def test_a_watch_without_a_version_begins_with_what_is_there(api: Api) -> None:
    api.create("a")
    events = api.watch(None, fieldSelector="metadata.name=a")
    assert [event["type"] for event in events] == ["ADDED"]


def test_a_watch_from_the_version_of_a_list_misses_nothing(api: Api) -> None:
    listed = api.ok("GET", api.maps, fieldSelector="metadata.name=later")
    api.create("later")
    events = api.watch(version_of(listed), fieldSelector="metadata.name=later")
    assert [event["type"] for event in events] == ["ADDED"]


def test_a_bookmark_carries_a_version_to_go_on_from(api: Api) -> None:
    listed = api.ok("GET", api.maps)
    api.create("a")
    events = api.watch(version_of(listed), 3, allowWatchBookmarks="true", fieldSelector="metadata.name=a")
    marks = [event for event in events if event["type"] == "BOOKMARK"]
    if not marks and api.cluster.server is None:
        pytest.skip("a server need not send any")
    assert marks[-1]["object"]["kind"] == "ConfigMap"
    assert api.watch(version_of(marks[-1]["object"]), fieldSelector="metadata.name=a") == []


def test_a_version_that_is_too_old_is_gone(api: Api) -> None:
    """By an event or by the status: a client must understand both."""
    query = {"watch": "true", "timeoutSeconds": "2", "resourceVersion": "1"}
    answer = api.cluster.request("GET", api.maps, **query)
    if answer.status_code == 200 and not answer.text:
        pytest.skip("a server that was started a moment ago has forgotten nothing")
    if answer.status_code == 200:
        event = json.loads(answer.text.splitlines()[0])
        assert event["type"] == "ERROR"
        status = event["object"]
    else:
        status = answer.json()
    assert (status["code"], status["reason"]) in ((410, "Expired"), (410, "Gone"))


# Leases.


def test_leases_are_created_by_put_and_updated_under_their_version_only(api: Api) -> None:
    path = f"{api.leases}/l"
    body = {
        "metadata": {"name": "l"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2024-01-01T00:00:00.000000Z"},
    }
    assert api.cluster.request("PUT", path, body).status_code == 201
    status = api.refused("PUT", path, body)
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert "metadata.resourceVersion: Invalid value" in status["message"]
    assert "must be specified for an update" in status["message"]
    now = api.ok("GET", path)
    now["spec"]["holderIdentity"] = "you"
    api.ok("PUT", path, now)
    status = api.refused("PUT", path, now)
    assert (status["code"], status["reason"]) == (409, "Conflict")
    assert status["details"] == {"name": "l", "group": "coordination.k8s.io", "kind": "leases"}


@pytest.mark.parametrize("spec", [{"leaseDurationSeconds": 0}, {"leaseDurationSeconds": -1}, {"leaseTransitions": -1}])
def test_impossible_leases_are_invalid(api: Api, spec: dict[str, Any]) -> None:
    status = api.refused("POST", api.leases, {"metadata": {"name": "l"}, "spec": spec})
    assert (status["code"], status["reason"]) == (422, "Invalid")


# Who may.


@pytest.fixture
def nobody(cluster: KubernetesCluster) -> Iterator[httpx2.Client]:
    """A service account without any rights."""
    accounts = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts"
    assert cluster.request("POST", accounts, {"metadata": {"name": "nobody"}}).status_code == 201
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.request("POST", f"{accounts}/nobody/token", body).json()["status"]["token"]
    client = cluster.open_http(token)
    yield client
    client.close()


def test_who_has_no_rights_is_told_which(api: Api, nobody: httpx2.Client) -> None:
    namespace = api.cluster.namespace
    who = f"system:serviceaccount:{namespace}:nobody"
    answer = nobody.get(api.one("a"))
    assert answer.status_code == 403
    assert answer.json()["reason"] == "Forbidden"
    assert answer.json()["message"] == (
        f'configmaps "a" is forbidden: User "{who}" cannot get resource "configmaps" in API group "" in the namespace '
        f'"{namespace}"'
    )
    for method, path, verb in (("GET", api.maps, "list"), ("POST", api.maps, "create")):
        answer = nobody.request(method, path, json={"metadata": {"name": "a"}} if method == "POST" else None)
        assert answer.status_code == 403
        assert f"cannot {verb} resource" in answer.json()["message"]


def test_a_token_that_nobody_issued_is_unauthorized(api: Api) -> None:
    stranger = api.cluster.open_http("no-such-token")
    answer = stranger.get(api.maps)
    stranger.close()
    assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthorized")


def test_everybody_may_ask_what_he_may(api: Api, nobody: httpx2.Client) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    attributes = {"namespace": api.cluster.namespace, "verb": "get", "resource": "configmaps"}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    assert nobody.post(path, json=body).json()["status"]["allowed"] is False
    assert api.ok("POST", path, body)["status"]["allowed"] is True


def test_rights_may_be_for_one_name(api: Api, nobody: httpx2.Client) -> None:
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"], "resourceNames": ["mine"]}]
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{api.cluster.namespace}"
    api.ok("POST", f"{base}/roles", {"metadata": {"name": "one"}, "rules": rules})
    binding = {
        "metadata": {"name": "one"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "one"},
        "subjects": [{"kind": "ServiceAccount", "name": "nobody", "namespace": api.cluster.namespace}],
    }
    api.ok("POST", f"{base}/rolebindings", binding)
    api.create("mine")
    api.create("yours")
    # A real cluster takes a moment to act on new roles.
    eventually(lambda: nobody.get(api.one("mine")).status_code == 200, "the role acts")
    assert nobody.get(api.one("yours")).status_code == 403
    assert nobody.get(api.maps).status_code == 403
    assert nobody.get(api.maps, params={"fieldSelector": "metadata.name=mine"}).status_code == 200
    assert nobody.get(api.maps, params={"fieldSelector": "metadata.name=yours"}).status_code == 403
