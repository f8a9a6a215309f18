"""Who may publish to a topic: decisions of the access modes, epochs, and invariants over random histories."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.actors.topics import access_modes
from magnetar.actors.topics.access_modes import AccessMode, AccessRequest, AccessState, TopicAccess
from magnetar.protocol.errors import MagnetarError, NotAllowedError, ProducerBusy, ProducerFenced

SHARED, EXCLUSIVE = AccessRequest(), AccessRequest(AccessMode.EXCLUSIVE)
WAIT, FENCING = AccessRequest(AccessMode.WAIT_FOR_EXCLUSIVE), AccessRequest(AccessMode.EXCLUSIVE_WITH_FENCING)


@dataclass(eq=False)
class Someone:
    name: str = "p"


def held(request=EXCLUSIVE, epoch=-1):
    """A topic whose access is held, and the holder."""
    access, holder = TopicAccess(epoch), Someone("holder")
    assert access.stored(access.ask(holder, request).grant)
    return access, holder


def back(mode, topic_epoch):
    return AccessRequest(mode, 1, topic_epoch)


@pytest.mark.parametrize(("request_", "error"), [(SHARED, ProducerBusy), (EXCLUSIVE, ProducerFenced)])
def test_beside_a_holder_all_others_fail_as_in_pulsar(request_, error):
    access, _ = held()
    with pytest.raises(error, match="producer holder holds the topic alone"):
        access.ask(Someone(), request_)


def test_exclusive_fails_beside_shared_producers():
    access = TopicAccess()
    access.ask(Someone(), SHARED)
    with pytest.raises(ProducerFenced, match="the topic has producers that share it"):
        access.ask(Someone(), EXCLUSIVE)
    assert (access.state, access.holder) == (AccessState.FREE, None)


@pytest.mark.promise("4.8")
@pytest.mark.parametrize(("request_", "error"), [(SHARED, ProducerBusy), (EXCLUSIVE, ProducerFenced)])
def test_nobody_overtakes_a_producer_that_waits(request_, error):
    access, shared = TopicAccess(), Someone()
    access.ask(shared, SHARED)
    assert access.ask(Someone("waits"), WAIT).queued
    with pytest.raises(error, match="producer waits holds the topic alone, or waits for that"):
        access.ask(Someone(), request_)
    assert access.left(shared).grant.session.name == "waits"


def test_producers_that_wait_get_access_in_their_order_with_rising_epochs():
    access, holder = held()
    first, second = Someone("1"), Someone("2")
    for one in (first, second):
        assert access.ask(one, WAIT).queued
    for leaving, following, epoch in ((holder, first, 1), (first, second, 2)):
        grant = access.left(leaving).grant
        assert (grant.session, grant.epoch) == (following, epoch)
        assert access.stored(grant)
    assert access.left(second).grant is None
    assert (access.state, access.epoch) == (AccessState.FREE, 2)


def test_a_waiting_producer_that_leaves_loses_its_turn():
    access, holder = held()
    first, second = Someone("1"), Someone("2")
    for one in (first, second):
        access.ask(one, WAIT)
    assert access.left(first).grant is None
    assert access.left(holder).grant.session is second


def test_fencing_removes_the_holder_and_all_that_wait_at_once():
    access, holder = held()
    waits, newcomer = Someone("waits"), Someone("new")
    access.ask(waits, WAIT)
    decision = access.ask(newcomer, FENCING)
    assert (decision.evicted, decision.refused) == ((holder,), (waits,))
    assert (decision.grant.epoch, access.holder) == (1, newcomer)


def test_fencing_removes_shared_producers():
    access, both = TopicAccess(), (Someone("a"), Someone("b"))
    for one in both:
        access.ask(one, SHARED)
    assert access.ask(Someone(), FENCING).evicted == both


def test_a_grant_that_is_fenced_out_before_its_epoch_is_stored_does_not_count():
    access = TopicAccess()
    early = access.ask(Someone("early"), EXCLUSIVE).grant
    late = access.ask(Someone("late"), FENCING).grant
    assert not access.stored(early) and early.fenced
    assert access.stored(late) and late.epoch > early.epoch
    assert access.holder.name == "late"


def test_an_epoch_whose_store_failed_is_not_given_to_another_producer():
    access = TopicAccess()
    lost = access.ask(Someone(), EXCLUSIVE).grant
    access.failed(lost)
    assert access.state is AccessState.FREE
    assert access.ask(Someone(), EXCLUSIVE).grant.epoch == lost.epoch + 1


def test_a_failed_grant_gives_the_turn_to_the_next_that_waits():
    access, holder = held()
    first, second = Someone("1"), Someone("2")
    for one in (first, second):
        access.ask(one, WAIT)
    assert access.failed(access.left(holder).grant).grant.session is second


@pytest.mark.parametrize("mode", list(AccessMode)[1:])
def test_a_producer_that_returns_with_the_current_epoch_has_it_again(mode):
    access = TopicAccess(5)
    assert access.ask(Someone(), back(mode, 5)).grant.epoch == 5


@pytest.mark.parametrize("mode", list(AccessMode)[1:])
def test_a_producer_that_returns_with_an_old_epoch_is_fenced_and_nothing_changes(mode):
    access, holder = held(epoch=5)
    with pytest.raises(ProducerFenced, match="is 6, and the producer had access in epoch 5"):
        access.ask(Someone(), back(mode, 5))
    assert (access.holder, access.epoch, access.waiting) == (holder, 6, ())


def test_an_epoch_that_is_being_granted_counts_against_a_producer_that_returns():
    access = TopicAccess(5)
    access.ask(Someone(), EXCLUSIVE)
    with pytest.raises(ProducerFenced, match="is 6, and the producer had access in epoch 5"):
        access.ask(Someone(), back(AccessMode.EXCLUSIVE, 5))


def test_one_that_waits_with_an_epoch_is_fenced_when_the_epoch_has_moved_at_its_turn():
    access, shared = TopicAccess(5), Someone()
    access.ask(shared, SHARED)
    fresh, returning = Someone("fresh"), Someone("returning")
    access.ask(fresh, WAIT)
    assert access.ask(returning, back(AccessMode.WAIT_FOR_EXCLUSIVE, 5)).queued
    assert access.stored(access.left(shared).grant)
    decision = access.left(fresh)
    assert (decision.grant, decision.refused) == (None, (returning,))


def test_shared_producers_return_whatever_their_epoch():
    access = TopicAccess(5)
    assert access.ask(Someone(), back(AccessMode.SHARED, 2)).grant is None


def test_an_epoch_that_no_topic_could_have_given_is_refused():
    with pytest.raises(NotAllowedError, match="too high"):
        TopicAccess().ask(Someone(), back(AccessMode.EXCLUSIVE, 1 << 63))


def test_a_session_that_replaces_another_keeps_its_access_or_its_place():
    access, holder = held()
    again, waits, waits_again = Someone(), Someone(), Someone()
    access.ask(waits, WAIT)
    assert access.replace(holder, again) and access.replace(waits, waits_again)
    assert (access.holder, access.waiting) == (again, (waits_again,))
    assert access.left(holder).grant is None
    assert access.left(again).grant.session is waits_again
    assert not access.replace(Someone(), Someone())


def test_the_queue_has_a_bound(monkeypatch):
    monkeypatch.setattr(access_modes, "WAITING_MAX", 1)
    access, _ = held()
    access.ask(Someone(), WAIT)
    with pytest.raises(ProducerBusy, match="1 producers wait"):
        access.ask(Someone(), WAIT)


class Room:
    """A topic with producers that do anything in any order; checks the invariants after each step."""

    def __init__(self):
        self.access = TopicAccess()
        self.shared, self.waiting = [], []
        self.granting, self.holder = None, None
        self.granted, self.best = [], -1

    def ask(self, mode, returning):
        asker = Someone(str(len(self.granted)))
        try:
            decision = self.access.ask(asker, AccessRequest(mode, 0, returning))
        except MagnetarError:
            return
        if mode is AccessMode.SHARED:
            assert self.holder is None and self.granting is None and not self.waiting
            self.shared.append(asker)
        elif decision.queued:
            assert self.holder or self.granting or self.shared
            self.waiting.append(asker)
        gone = {*decision.evicted, *decision.refused}
        self.shared = [one for one in self.shared if one not in gone]
        self.waiting = [one for one in self.waiting if one not in gone]
        if mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            self.holder = self.granting = None
            assert not self.shared and not self.waiting
        self.follow(decision, returning)

    def follow(self, decision, returning=None):
        for one in decision.refused:
            if one in self.waiting:
                self.waiting.remove(one)
        if decision.grant is not None:
            grant = decision.grant
            assert self.holder is None and self.granting is None and not self.shared
            assert grant.epoch > self.best or grant.epoch == returning or grant.epoch >= self.access.epoch
            if grant.session in self.waiting:
                assert self.waiting.pop(0) is grant.session
            elif returning is None:
                assert grant.epoch > self.best
            self.best = max(self.best, grant.epoch)
            self.granting = grant

    def step(self, what, index, mode, returning):
        before = self.access.epoch
        if what == "ask":
            self.ask(mode, returning)
        elif what in ("stored", "failed") and self.granting is not None:
            grant, self.granting = self.granting, None
            if what == "stored":
                assert self.access.stored(grant)
                self.holder = grant.session
                self.granted.append(grant.epoch)
            else:
                self.follow(self.access.failed(grant))
        elif what == "leave":
            present = [*self.shared, *self.waiting, *filter(None, [self.holder])]
            if present:
                leaver = present[index % len(present)]
                self.shared = [one for one in self.shared if one is not leaver]
                self.waiting = [one for one in self.waiting if one is not leaver]
                self.holder = None if self.holder is leaver else self.holder
                self.follow(self.access.left(leaver))
        assert self.access.epoch >= before
        assert self.granted == sorted(self.granted)
        assert not self.access.waiting or self.holder or self.granting or self.shared
        assert list(self.access.waiting) == self.waiting


@pytest.mark.promise("4.8")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "ask", "stored", "stored", "failed", "leave"]),
            st.integers(0, 5),
            st.sampled_from(AccessMode),
            st.one_of(st.none(), st.none(), st.integers(0, 6)),
        ),
        max_size=40,
    )
)
def test_no_history_breaks_the_invariants(steps):
    room = Room()
    for step in steps:
        room.step(*step)
