"""Who may do what on the API server double: bearer tokens, Roles and RoleBindings, access reviews.

The rules are read from the Role and RoleBinding objects in the store at each request, as the real authorizer does, so
a test may apply a manifest through the API and then work under exactly its rules.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from holdfast.testing.kubernetes.object import RBAC
from holdfast.testing.kubernetes.status import forbidden, unauthorized
from holdfast.testing.kubernetes.store import VersionedStore

Json = dict[str, Any]


@dataclass(frozen=True)
class User:
    """An authenticated user."""

    name: str
    groups: tuple[str, ...]


ADMINISTRATOR = User("kubernetes-admin", ("system:masters", "system:authenticated"))
ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


def service_account(namespace: str, name: str) -> User:
    """The user that a service account's token stands for."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


@dataclass(frozen=True)
class Attributes:
    """What a request wants to do, as the authorizer sees it."""

    verb: str
    group: str
    plural: str
    namespace: str
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """`serviceaccounts/token` or `configmaps`."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


class Access:
    """Tokens and rules."""

    def __init__(self, store: VersionedStore) -> None:
        self._store = store
        self._tokens: dict[str, User] = {}

    def issue(self, user: User) -> str:
        """A new token for a user."""
        token = secrets.token_urlsafe(24)
        self._tokens[token] = user
        return token

    def revoke(self, token: str) -> None:
        """The token is answered 401 from now on."""
        self._tokens.pop(token, None)

    def authenticate(self, authorization: str | None) -> User:
        """The user of an `Authorization` header.

        Raises:
            StatusError: 401 for a token that is not known. No token at all is the anonymous user.
        """
        if authorization is None:
            return ANONYMOUS
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or token not in self._tokens:
            raise unauthorized()
        return self._tokens[token]

    def authorize(self, user: User, wanted: Attributes) -> None:
        """Let the request pass.

        Raises:
            StatusError: 403 if no rule allows it.
        """
        if not self.allows(user, wanted):
            raise forbidden(
                user.name, wanted.verb, wanted.group, wanted.plural, wanted.namespace, wanted.name, wanted.subresource
            )

    def allows(self, user: User, wanted: Attributes) -> bool:
        """Whether a rule allows it: the administrator's group, a role of the namespace, or the right to ask."""
        if "system:masters" in user.groups:
            return True
        if wanted.plural == "selfsubjectaccessreviews":
            return "system:authenticated" in user.groups
        return any(_matches(rule, wanted) for rule in self._rules(user, wanted.namespace))

    def _rules(self, user: User, namespace: str) -> list[Json]:
        if not namespace:
            return []
        rules: list[Json] = []
        for binding in self._store.select(RBAC, "rolebindings", namespace):
            if any(_is_subject(subject, user) for subject in binding.get("subjects", [])):
                role = self._store.get((RBAC, "roles", namespace, binding["roleRef"]["name"]))
                if binding["roleRef"].get("kind") == "Role" and role is not None:
                    rules.extend(role.get("rules", []))
        return rules


def _is_subject(subject: Json, user: User) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject.get('namespace')}:{subject['name']}"
    if subject["kind"] == "Group":
        return subject["name"] in user.groups
    return bool(subject["kind"] == "User" and subject["name"] == user.name)


def _matches(rule: Json, wanted: Attributes) -> bool:
    def holds(allowed: list[str], value: str) -> bool:
        return "*" in allowed or value in allowed

    names = rule.get("resourceNames", [])
    return (
        holds(rule.get("verbs", []), wanted.verb)
        and holds(rule.get("apiGroups", []), wanted.group)
        and holds(rule.get("resources", []), wanted.resource)
        and (not names or wanted.name in names)
    )
