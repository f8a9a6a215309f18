"""Sessions: registration, silence, pauses, incarnations."""

import pytest

from magnetar.actors.coordinator.membership import ENDED_REMEMBERED_MAX, Membership, Session, SessionState
from magnetar.protocol.errors import StaleEpoch
from magnetar.runtime.transitions import ForbiddenTransition

TIMEOUT_S, TICK_S = 3.0, 0.25


def session(node: str = "broker-1", incarnation: str = "1", role: str = "broker") -> Session:
    return Session(role, node, incarnation, "127.0.0.1", 1, {}, object())


def members() -> Membership:
    return Membership(TIMEOUT_S, TICK_S)


def run(membership: Membership, since_s: float, until_s: float) -> list[Session]:
    """Ticks in time, up to and including `until_s`; what the last one answers."""
    silent: list[Session] = []
    steps = round((until_s - since_s) / TICK_S)
    for step in range(steps + 1):
        silent = membership.tick(since_s + step * TICK_S)
    return silent


def test_silence_ends_a_session_after_the_time_out_not_before() -> None:
    membership = members()
    one, two = session("broker-1"), session("broker-2")
    membership.register(one)
    membership.register(two)
    assert run(membership, 0.0, 2.75) == []
    membership.heard(two)
    assert membership.tick(3.0) == [one]
    assert membership.end(one) and not membership.end(one)
    assert membership.of_role("broker") == [two]


def test_a_pause_of_ours_counts_for_nothing() -> None:
    membership = members()
    one = session()
    membership.register(one)
    run(membership, 0.0, 2.75)
    assert membership.tick(1000.0) == []  # nobody could be heard meanwhile: read the sockets first
    membership.heard(one)
    assert membership.tick(1000.25) == []
    assert run(membership, 1000.5, 1003.25) == [one]


def test_one_that_stays_silent_after_a_pause_is_judged_at_the_next_tick() -> None:
    membership = members()
    one = session()
    membership.register(one)
    run(membership, 0.0, 2.75)
    assert membership.tick(1000.0) == []
    assert membership.tick(1000.25) == [one]


def test_an_ended_broker_incarnation_never_returns() -> None:
    membership = members()
    one = session()
    membership.register(one)
    membership.end(one)
    assert membership.has_ended("broker-1", "1") and not membership.has_ended("broker-1", "2")
    with pytest.raises(StaleEpoch):
        membership.register(session())
    membership.register(session(incarnation="2"))
    assert membership.is_alive("broker", "broker-1", "2")


def test_a_bookie_may_return_as_it_is() -> None:
    membership = members()
    one = session("bookie-1", role="bookie")
    membership.register(one)
    membership.end(one)
    membership.register(session("bookie-1", role="bookie"))
    assert membership.find("bookie", "bookie-1") is not None


def test_another_incarnation_replaces_and_ends_the_first() -> None:
    membership = members()
    one, two = session(), session(incarnation="2")
    assert membership.register(one) is None
    assert membership.register(two) is one
    assert not one.alive and not membership.end(one)
    assert membership.has_ended("broker-1", "1")
    assert membership.all() == [two]
    with pytest.raises(StaleEpoch):
        membership.register(session())


def test_the_same_incarnation_over_a_new_connection_goes_on() -> None:
    membership = members()
    one, again = session(), session()
    membership.register(one)
    assert membership.register(again) is one
    assert not membership.has_ended("broker-1", "1")
    assert membership.all() == [again]


def test_the_grace_lasts_one_time_out_of_time_awake() -> None:
    membership = members()
    run(membership, 0.0, 2.75)
    assert membership.in_grace
    membership.tick(500.0)
    assert membership.in_grace
    membership.tick(500.25)
    assert not membership.in_grace


def test_the_grace_ends_early_when_brokers_came_back_and_no_more_come() -> None:
    membership = members()
    run(membership, 0.0, 0.25)
    membership.register(session("bookie-1", role="bookie"))
    membership.register(session("broker-1"))
    run(membership, 0.5, 0.75)
    assert membership.in_grace, "another one may be on its way"
    membership.register(session("broker-2"))
    run(membership, 1.0, 2.0)
    assert membership.in_grace, "each that comes gives the others time"
    run(membership, 2.25, 2.25)
    assert not membership.in_grace


def test_the_grace_lasts_in_full_while_no_broker_came_back() -> None:
    membership = members()
    membership.register(session("bookie-1", role="bookie"))
    run(membership, 0.0, 2.75)
    assert membership.in_grace


def test_memory_of_ended_incarnations_is_bounded() -> None:
    membership = members()
    for number in range(ENDED_REMEMBERED_MAX + 5):
        one = session(incarnation=str(number))
        membership.register(one)
        membership.end(one)
    assert not membership.has_ended("broker-1", "4") and membership.has_ended("broker-1", "5")


# -- connections that closed while the coordinator itself was paused --------------------------------------------------


def test_a_connection_that_closes_while_all_is_well_ends_its_session_at_once() -> None:
    membership = members()
    one = session()
    membership.register(one)
    run(membership, 0.0, 2.75)
    assert membership.disconnected(one, 3.0)
    assert not one.alive and membership.has_ended("broker-1", "1")
    assert not membership.disconnected(one, 3.0)


@pytest.mark.parametrize("tick_first", [False, True], ids=["sockets first", "timers first"])
def test_after_a_pause_a_closed_connection_leaves_its_session_detached(tick_first: bool) -> None:
    membership = members()
    one, two = session("broker-1"), session("broker-2")
    membership.register(one)
    membership.register(two)
    run(membership, 0.0, 2.75)
    if tick_first:
        membership.tick(10.0)
    assert not membership.disconnected(one, 10.0) and not membership.disconnected(two, 10.0)
    if not tick_first:
        membership.tick(10.0)
    assert membership.of_role("broker") == [one, two]
    again = session("broker-1")
    assert membership.register(again) is one
    silent: list[Session] = []
    at_s = 10.0
    while not silent:
        at_s += TICK_S
        membership.heard(again)
        silent = membership.tick(at_s)
    assert silent == [two]
    assert at_s == 10.0 + TIMEOUT_S  # from the wake-up on, not from the last word
    assert membership.end(two) and membership.has_ended("broker-2", "1")


def test_another_incarnation_ends_a_detached_one_at_once() -> None:
    membership = members()
    one, two = session(), session(incarnation="2")
    membership.register(one)
    run(membership, 0.0, 2.75)
    assert not membership.disconnected(one, 10.0)
    assert membership.register(two) is one
    assert membership.has_ended("broker-1", "1") and membership.all() == [two]


def test_what_closes_after_the_wake_up_is_over_ends_at_once_again() -> None:
    membership = members()
    one = session()
    membership.register(one)
    run(membership, 0.0, 2.75)
    membership.tick(10.0)
    membership.tick(10.25)
    assert membership.disconnected(one, 10.3)


def test_a_tick_that_is_only_a_little_late_saves_nobody() -> None:
    membership = members()
    one = session()
    membership.register(one)
    run(membership, 0.0, 2.75)
    membership.tick(4.0)  # members wait longer than that
    assert membership.disconnected(one, 4.0)


def test_a_session_that_has_ended_cannot_be_registered_again() -> None:
    membership, one = members(), session()
    assert one.state is SessionState.NEW
    membership.register(one)
    assert one.state is SessionState.ALIVE
    assert membership.end(one) and one.state is SessionState.ENDED
    with pytest.raises(ForbiddenTransition, match="the session of broker-1 cannot go from ended to alive"):
        one.become(SessionState.ALIVE)
