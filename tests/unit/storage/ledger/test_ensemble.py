"""Copies of an entry lie on different machines while there are enough, and then in different zones."""

from itertools import product

import pytest

from magnetar.runtime.environment import SeededChance
from magnetar.storage.ledger.ensemble import (
    BookiePlace,
    Clashes,
    Copies,
    clashes_of,
    neighbours,
    place,
    replace_slots,
)


def bookies(machines: dict[str, int], zones: dict[str, str] | None = None) -> dict[str, BookiePlace]:
    """So many bookies on each machine."""
    zones = zones or {}
    return {
        f"{name}{n}": BookiePlace(name, zones.get(name, "")) for name, count in machines.items() for n in range(count)
    }


def test_slots_that_share_an_entry_are_neighbours() -> None:
    assert neighbours(0, 5, 2) == [1, 4]
    assert neighbours(0, 3, 3) == [1, 2]
    assert neighbours(2, 4, 1) == []


@pytest.mark.promise("30.9")
@pytest.mark.parametrize(("ensemble", "quorum"), [(3, 3), (4, 2), (5, 3), (2, 2), (6, 2)])
def test_no_two_copies_share_a_machine_while_there_are_enough_machines(ensemble: int, quorum: int) -> None:
    for counts in product(range(1, 4), repeat=4):
        found = bookies(dict(zip("abcd", counts, strict=True)))
        # Four machines are enough for these quorums, if the slots can be dealt out at all.
        if len(found) < ensemble or sum(min(count, ensemble // quorum) for count in counts) < ensemble:
            continue
        for seed in range(5):
            chosen = place(SeededChance(seed), found, Copies(ensemble, quorum, 2), (), found.__getitem__)
            assert len(set(chosen.bookies)) == ensemble
            assert clashes_of(chosen.bookies, quorum, found.__getitem__) == Clashes(), (counts, chosen)


@pytest.mark.promise("30.9")
def test_copies_are_spread_over_zones_once_machines_differ() -> None:
    found = bookies({"a": 2, "b": 2, "c": 2, "d": 2}, {"a": "x", "b": "x", "c": "y", "d": "y"})
    for seed in range(50):
        chosen = place(SeededChance(seed), found, Copies(2, 2, 2), (), found.__getitem__).bookies
        assert {found[one].zone for one in chosen} == {"x", "y"}
        three = place(SeededChance(seed), found, Copies(3, 3, 2), (), found.__getitem__).bookies
        assert len({found[one].node for one in three}) == 3, "different machines count more"
        assert len({found[one].zone for one in three}) == 2


def test_too_few_machines_carry_several_copies_rather_than_too_few() -> None:
    found = bookies({"a": 3, "b": 1})
    chosen = place(SeededChance(1), found, Copies(3, 3, 2), (), found.__getitem__).bookies
    assert len(chosen) == 3 and {found[one].node for one in chosen} == {"a", "b"}


def test_all_bookies_get_their_share_where_machines_are_known() -> None:
    found = bookies({"a": 2, "b": 2, "c": 2})
    counts = dict.fromkeys(found, 0)
    chance = SeededChance(3)
    for _ in range(600):
        for one in place(chance, found, Copies(3, 3, 2), (), found.__getitem__).bookies:
            counts[one] += 1
    assert min(counts.values()) > 200 and max(counts.values()) < 400


def test_a_spare_is_on_another_machine_than_the_bookies_that_stay() -> None:
    found = bookies({"a": 2, "b": 2, "c": 2})
    for seed in range(20):
        replaced = replace_slots(SeededChance(seed), ["a0", "b0", "c0"], [1], found, (), 3, found.__getitem__)
        assert replaced == {1: "b1"}
        both = replace_slots(SeededChance(seed), ["a0", "b0", "c0"], [0, 1], found, (), 3, found.__getitem__)
        assert sorted(both.values()) == ["a1", "b1"]


def test_a_striped_spare_differs_from_its_neighbours_first() -> None:
    found = bookies({"a": 3, "b": 3, "c": 3})
    for seed in range(20):
        ensemble = ["a0", "b0", "c0", "b1"]
        (spare,) = replace_slots(SeededChance(seed), ensemble, [1], found, (), 2, found.__getitem__).values()
        assert found[spare].node == "b", "slots 0 and 2 are on a and c; slot 3 shares no entry with slot 1"
