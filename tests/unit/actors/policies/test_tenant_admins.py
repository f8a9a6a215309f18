"""The copy of who administers which tenant, in whatever order listings and changes come."""

import pytest

from magnetar.actors.policies.tenant_admins import TenantAdmins, admins_of
from magnetar.actors.policies.watch import PolicyWatch
from magnetar.protocol.errors import ProtocolError
from magnetar.runtime.settings.declarations import Settings

A, B = frozenset({"a"}), frozenset({"b"})


def test_a_later_version_counts_and_an_older_one_does_not() -> None:
    admins = TenantAdmins()
    assert admins.take("t", 2, A) and admins.of("t") == A
    assert not admins.take("t", 1, B) and admins.of("t") == A
    assert admins.take("t", 3, B) and admins.of("t") == B
    assert admins.of("other") == frozenset()


def test_a_tenant_that_is_gone_does_not_come_back_with_an_older_page() -> None:
    admins = TenantAdmins()
    admins.take("t", 1, A)
    admins.listing_began()
    assert admins.take("t", 2, frozenset())
    assert not admins.take("t", 1, A)
    assert not admins.listing_ended() and admins.of("t") == frozenset()


def test_a_tenant_that_a_listing_leaves_out_has_no_admins() -> None:
    admins = TenantAdmins()
    admins.take("t", 1, A)
    admins.take("kept", 1, B)
    admins.begin_session()
    admins.listing_began()
    assert not admins.take("kept", 1, B), "it says what is held already"
    assert admins.listing_ended()
    assert admins.of("t") == frozenset() and admins.of("kept") == B


@pytest.mark.parametrize("values", [[], "a", {"adminRoles": "a"}, {"adminRoles": [1]}])
def test_a_malformed_row_is_refused(values: object) -> None:
    with pytest.raises(ProtocolError):
        admins_of(values)
    assert admins_of(None) == admins_of({}) == frozenset()


def test_the_watch_tells_of_permissions_and_of_nothing_else() -> None:
    told: list[int] = []
    watch = PolicyWatch(Settings(), lambda changed: None)
    watch.on_permissions = lambda: told.append(1)
    watch.begin_session()
    watch.listing_began()
    watch.take([("t", 1, {"adminRoles": ["a"]})])
    watch.listing_ended()
    assert len(told) == 1 and watch.tenants.of("t") == A
    watch.take([("t", 1, {"adminRoles": ["a"]}), ("persistent://t/n/one", 1, {"compaction_threshold": 1})])
    assert len(told) == 1
    watch.take([("t/n", 1, {"auth_policies": {"namespace_auth": {"r": ["produce"]}}})])
    watch.take([("t/n", 2, {"auth_policies": {"namespace_auth": {"r": ["produce"]}}, "compaction_threshold": 1})])
    watch.take([("t", 2, None)])
    assert len(told) == 3 and watch.tenants.of("t") == frozenset()
