"""What a role may do: super-users, admins of tenants, grants, subscriptions, wildcards and proxies."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar.actors.policies.watch import PolicyWatch
from magnetar.actors.security import authorization as needs
from magnetar.actors.security.authorization import Authorization, Need, Scope, matches
from magnetar.actors.security.credentials import NOBODY, Principal
from magnetar.protocol.errors import AuthorizationError, ServiceUnitNotReady, SettingError
from magnetar.protocol.topics import TopicName
from magnetar.runtime.settings.declarations import Settings

NAMESPACE = "shop/sales"
GRANTS = {
    "namespace_auth": {"writer": ["produce"], "reader": ["consume"], "tool": ["functions"], "team-*": ["consume"]},
    "destination_auth": {"persistent://shop/sales/one": {"narrow": ["produce", "consume"]}},
    "subscription_auth_roles": {"closed": ["reader"], "open": []},
}
ALL = [
    needs.SUPER_USER,
    needs.TENANT_ADMIN,
    needs.NAMESPACE_ADMIN,
    needs.NAMESPACE_USER,
    needs.NAMESPACE_CONSUME,
    needs.TOPIC_ADMIN,
    needs.TOPIC_USER,
    needs.PRODUCE,
    needs.CONSUME,
]


def decider(*, known: bool = True, **changes: Any) -> Authorization:
    given = {
        "authentication_enabled": True,
        "authentication_providers": "tls",
        "authorization_enabled": True,
        "super_user_roles": "root",
    }
    settings = dataclasses.replace(Settings(), **{**given, **changes})
    watch = PolicyWatch(settings, lambda changed: None)
    watch.begin_session()
    watch.listing_began()
    watch.take([("shop", 1, {"adminRoles": ["boss"]}), (NAMESPACE, 1, {"auth_policies": GRANTS})])
    if known:
        watch.listing_ended()
    return Authorization.of_settings(settings, watch)


def allowed(role: str, topic: str = "one", decider: Authorization = decider()) -> list[Need]:  # noqa: B008
    scope = Scope.of_topic(TopicName.parse(f"persistent://{NAMESPACE}/{topic}"))
    return [need for need in ALL if decider.permits(Principal(role), need, scope)]


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("root", ALL),
        ("boss", ALL[1:]),
        ("writer", [needs.NAMESPACE_USER, needs.TOPIC_USER, needs.PRODUCE]),
        ("reader", [needs.NAMESPACE_USER, needs.NAMESPACE_CONSUME, needs.TOPIC_USER, needs.CONSUME]),
        ("tool", []),
        ("team-a", []),
        ("nobody", []),
        ("", []),
    ],
)
def test_a_role_may_do_what_it_is_granted(role: str, expected: Sequence[Need]) -> None:
    assert allowed(role) == list(expected)


def test_a_grant_of_a_topic_holds_for_its_partitions_and_for_no_other_topic() -> None:
    on_topic = [needs.TOPIC_USER, needs.PRODUCE, needs.CONSUME]
    for topic in ("one", "one-partition-3"):
        assert [need for need in allowed("narrow", topic) if need.level is needs.Level.TOPIC] == on_topic
    assert allowed("narrow", "two") == []


def test_a_namespace_has_no_grants_of_its_topics() -> None:
    scope = Scope.of_namespace(NAMESPACE)
    assert not decider().permits(Principal("narrow"), needs.NAMESPACE_USER, scope)
    assert decider().permits(Principal("writer"), needs.NAMESPACE_USER, scope)
    assert not decider().permits(Principal("boss"), needs.NAMESPACE_ADMIN, Scope.of_namespace("other/sales"))
    assert not decider().permits(Principal("writer"), needs.NAMESPACE_USER, Scope("shop"))


@pytest.mark.parametrize(
    ("role", "subscription", "expected"),
    [
        ("reader", "closed", True),
        ("narrow", "closed", False),
        ("narrow", "open", True),
        ("narrow", "another", True),
        ("boss", "closed", True),
        ("root", "closed", True),
    ],
)
def test_a_subscription_with_roles_is_closed_to_others(role: str, subscription: str, expected: bool) -> None:
    scope = Scope.of_topic(TopicName.parse(f"persistent://{NAMESPACE}/one"), subscription)
    assert decider().permits(Principal(role), needs.CONSUME, scope) is expected


def test_wildcards_count_if_they_are_wanted() -> None:
    wild = decider(authorization_allow_wildcards_matching=True)
    assert needs.CONSUME in allowed("team-a", decider=wild) and allowed("ateam-", decider=wild) == []
    assert [matches(pattern, "abc") for pattern in ("*", "a*", "*c", "b*", "*b", "a*c", "abc")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip


def test_a_proxy_and_its_client_both_need_the_permission() -> None:
    scope = Scope.of_topic(TopicName.parse(f"persistent://{NAMESPACE}/one"))
    for principal, expected in (
        (Principal("root", "writer"), True),
        (Principal("root", "nobody"), False),
        (Principal("nobody", "root"), False),
        (NOBODY, False),
    ):
        assert decider().permits(principal, needs.PRODUCE, scope) is expected


def test_a_refusal_names_the_role_what_it_wants_and_of_what() -> None:
    scope = Scope.of_topic(TopicName.parse(f"persistent://{NAMESPACE}/one"), "s")
    with pytest.raises(AuthorizationError, match="nobody may not consume at the subscription s of persistent://shop"):
        decider().check(Principal("nobody"), needs.CONSUME, scope)
    with pytest.raises(AuthorizationError, match="nobody may not administer the cluster"):
        decider().check(Principal("nobody"), needs.SUPER_USER, Scope())


def test_nothing_is_decided_before_the_permissions_are_known() -> None:
    with pytest.raises(ServiceUnitNotReady):
        decider(known=False).check(Principal("root"), needs.SUPER_USER, Scope())


def test_without_authorization_everybody_may_everything() -> None:
    free = decider(authorization_enabled=False)
    assert allowed("nobody", decider=free) == ALL


class Odd:
    """A provider of the operator: roles of even length may."""

    def __init__(self, settings: Settings, granted: PolicyWatch) -> None:
        pass

    def permits(self, role: str, need: Need, scope: Scope) -> bool:
        return len(role) % 2 == 0


class Broken(Odd):
    """A provider with a defect."""

    def permits(self, role: str, need: Need, scope: Scope) -> bool:
        raise ValueError("a defect")


def test_a_defect_of_a_provider_lets_nobody_in() -> None:
    assert allowed("root", decider=decider(authorization_provider=f"{__name__}:Broken")) == []


def test_a_class_of_ones_own_decides() -> None:
    own = decider(authorization_provider=f"{__name__}:Odd")
    assert allowed("even", decider=own) == ALL and allowed("odd", decider=own) == []
    with pytest.raises(SettingError):
        decider(authorization_provider="nothing")
    assert decider(authorization_provider=needs.PULSARS).permits(Principal("root"), needs.SUPER_USER, Scope())
