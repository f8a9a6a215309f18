"""What should run, as a record: each change, and what never happens whatever the order of changes."""

import random

import pytest

from magnetar.actors.desired.record import DesiredState
from magnetar.protocol.errors import MetadataError, NoSuchKey, NotAllowedError
from magnetar.runtime.rpc.messages import pack, unpack

NEEDED = 3


def test_scaling_up_adds_the_lowest_free_broker_and_bookies_that_never_were() -> None:
    state = DesiredState.of(3, 3).drained("broker-2", NEEDED).without("broker-2")
    state = state.scaled(3, 4, NEEDED).drained("bookie-4", NEEDED).without("bookie-4")
    assert state.brokers == (1, 2, 3)
    assert state.scaled(None, 4, NEEDED).bookies == (1, 2, 3, 5), "bookie-4 had data of its own"


def test_scaling_down_drains_the_highest_and_scaling_up_lets_them_stay() -> None:
    down = DesiredState.of(3, 5).scaled(1, 3, NEEDED)
    assert down.draining == {"broker-2", "broker-3", "bookie-4", "bookie-5"}
    up = down.scaled(2, 4, NEEDED)
    assert up.draining == {"broker-3", "bookie-5"}
    assert up.scaled(4, None, NEEDED).wanted_brokers == ["broker-1", "broker-2", "broker-3", "broker-4"]


def test_a_drain_that_would_leave_too_few_is_refused_and_says_what_to_do() -> None:
    state = DesiredState.of(1, 3)
    with pytest.raises(NotAllowedError, match="broker-1 is the last broker: add one first"):
        state.drained("broker-1", NEEDED)
    with pytest.raises(NotAllowedError, match=r"without bookie-2 2 bookies would remain.*need 3.*--bookies 4"):
        state.drained("bookie-2", NEEDED)
    with pytest.raises(NotAllowedError, match="1 to 100000 brokers, not 0"):
        state.scaled(0, None, NEEDED)
    assert state.scaled(None, 3, 5) == state, "what does not change is not checked"


def test_an_unknown_member_is_named_and_a_second_drain_changes_nothing() -> None:
    state = DesiredState.of(2, 3)
    with pytest.raises(NoSuchKey, match=r"broker-9 is not.*broker-1, broker-2, bookie-1"):
        state.drained("broker-9", NEEDED)
    drained = state.drained("broker-2", NEEDED)
    assert drained.drained("broker-2", NEEDED) == drained
    assert drained.undrained("broker-2") == state


def test_a_record_comes_back_with_what_a_newer_version_put_there() -> None:
    state = DesiredState.of(2, 4).drained("bookie-4", NEEDED)
    assert DesiredState.unpack(state.pack()) == state
    newer = pack({**unpack(state.pack()), "listeners": {"broker-1": 7}})
    changed = DesiredState.unpack(newer).undrained("bookie-4")
    assert unpack(changed.pack())["listeners"] == {"broker-1": 7}


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {"brokers": [1], "bookies": [1]},
        {"brokers": [0], "bookies": [1], "draining": [], "bookies_ever": 1},
        {"brokers": [2, 1], "bookies": [1], "draining": [], "bookies_ever": 1},
        {"brokers": ["1"], "bookies": [1], "draining": [], "bookies_ever": 1},
        {"brokers": [1], "bookies": [1], "draining": ["broker-2"], "bookies_ever": 1},
        {"brokers": [1], "bookies": [1], "draining": [3], "bookies_ever": 1},
    ],
)
def test_anything_else_is_refused(record: object) -> None:
    with pytest.raises(MetadataError):
        DesiredState.unpack(pack(record))
    with pytest.raises(MetadataError):
        DesiredState.unpack(b"\xc1")


def test_no_order_of_changes_uses_a_bookie_number_twice_or_leaves_too_few() -> None:
    chance = random.Random(7)
    for _ in range(300):
        state = DesiredState.of(2, 4)
        seen = set(state.bookies)
        for _ in range(30):
            before = state
            try:
                state = _change(chance, state)
            except (NotAllowedError, NoSuchKey):
                continue
            assert not (set(state.bookies) - set(before.bookies)) & seen, "a number is used again"
            seen |= set(state.bookies)
            assert state.wanted_brokers and len(state.wanted_bookies) >= NEEDED
            assert DesiredState.unpack(state.pack()) == state


def _change(chance: random.Random, state: DesiredState) -> DesiredState:
    members = [*state.broker_ids, *state.bookie_ids, "broker-99"]
    match chance.randrange(4):
        case 0:
            return state.scaled(chance.choice([None, 0, 1, 2, 4]), chance.choice([None, 2, 3, 5]), NEEDED)
        case 1:
            return state.drained(chance.choice(members), NEEDED)
        case 2:
            return state.undrained(chance.choice(members))
        case _:
            return state.without(chance.choice(sorted(state.draining) or ["none"]))
