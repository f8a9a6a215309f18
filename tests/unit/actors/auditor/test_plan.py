"""What is wrong with a closed ledger, and the plan to repair it."""

from magnetar.actors.auditor.plan import crowding, pieces_of, replace_lost, spread, thicken
from magnetar.storage.ledger.ensemble import BookiePlace, Clashes, nowhere
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState


def closed(
    *fragments: tuple[int, tuple[str, ...]], last: int, write_quorum: int | None = None, thin: bool = False
) -> LedgerMetadata:
    size = len(fragments[0][1])
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=size,
        write_quorum=write_quorum or size,
        ack_quorum=2,
        fragments=tuple(Fragment(*fragment) for fragment in fragments),
        state=LedgerState.CLOSED,
        last_entry=last,
        under_replicated=thin,
    )


def test_pieces_cover_every_fragment_that_holds_something() -> None:
    ledger = closed((0, ("a", "b", "c")), (10, ("a", "b", "d")), last=14)
    assert [(piece.bookie, piece.first, piece.last) for piece in pieces_of(ledger)] == [
        ("a", 0, 9), ("b", 0, 9), ("c", 0, 9), ("a", 10, 14), ("b", 10, 14), ("d", 10, 14),
    ]  # fmt: skip
    assert pieces_of(closed((0, ("a", "b", "c")), last=-1)) == []


def test_a_lost_bookie_is_replaced_in_every_fragment_by_one_that_is_not_there() -> None:
    ledger = closed((0, ("a", "b", "c")), (10, ("a", "d", "c")), last=19)
    change = replace_lost(ledger, ["c"], ["a", "b", "d"], {})
    assert change is not None
    assert change.metadata.fragments == (Fragment(0, ("a", "b", "d")), Fragment(10, ("a", "d", "b")))
    assert [(piece.bookie, piece.first, piece.last) for piece in change.pieces] == [("d", 0, 9), ("b", 10, 19)]
    assert replace_lost(ledger, ["x"], ["a", "b", "d"], {}) is None
    assert replace_lost(closed((0, ("a", "b", "c")), last=5), ["c"], ["a", "b"], {}) is None


def test_spares_share_the_load() -> None:
    ledger = closed((0, ("a", "b", "c")), last=5)
    change = replace_lost(ledger, ["c"], ["d", "e"], {"d": 3})
    assert change is not None and change.metadata.fragments[0].bookies == ("a", "b", "e")
    both = replace_lost(ledger, ["b", "c"], ["d"], {})
    assert both is not None and both.metadata.fragments[0].bookies == ("a", "d", "c")


def test_a_thin_ledger_is_thickened_once_there_are_enough() -> None:
    thin = closed((0, ("a", "b")), last=5, thin=True)
    assert thicken(thin, 3, ["a", "b"], {}) is None
    change = thicken(thin, 3, ["a", "b", "c", "d"], {"c": 1})
    assert change is not None
    assert change.metadata.fragments[0].bookies == ("a", "b", "d")
    assert (change.metadata.ensemble_size, change.metadata.write_quorum) == (3, 3)
    assert not change.metadata.under_replicated
    assert [(piece.bookie, piece.first, piece.last) for piece in change.pieces] == [("d", 0, 5)]
    assert thicken(closed((0, ("a", "b", "c")), last=5), 3, ["d"], {}) is None


def places(**where: str) -> dict[str, BookiePlace]:
    """`a="1 x"`: bookie a is on machine 1, in zone x."""
    return {bookie: BookiePlace(*text.split()) for bookie, text in where.items()}


def test_of_two_copies_on_one_machine_one_moves_to_a_machine_that_has_none() -> None:
    where = places(a="1", b="1", c="2", d="2", e="3").__getitem__
    ledger = closed((0, ("a", "b", "c")), (10, ("a", "c", "e")), last=14)
    assert crowding(ledger, where) == Clashes(1, 0) and crowding(ledger, nowhere) == Clashes()
    change = spread(ledger, ["a", "b", "c", "d", "e"], {}, where)
    assert change is not None
    assert change.metadata.fragments == (Fragment(0, ("e", "b", "c")), Fragment(10, ("a", "c", "e")))
    assert [(piece.bookie, piece.first, piece.last) for piece in change.pieces] == [("e", 0, 9)]
    assert crowding(change.metadata, where) == Clashes()
    assert spread(change.metadata, ["a", "b", "c", "d", "e"], {}, where) is None
    assert spread(ledger, ["a", "b", "c", "d"], {}, where) is None, "d is on the machine of c"


def test_zones_count_after_machines_and_less_loaded_spares_come_first() -> None:
    where = places(a="1 x", b="1 y", c="2 x", d="3 x", e="4 z", f="5 z").__getitem__
    apart = spread(closed((0, ("a", "b", "c")), last=5), ["d"], {}, where)
    assert apart is not None and apart.metadata.bookies == ("d", "b", "c"), "rather one zone than one machine"
    assert spread(closed((0, ("b", "c", "d")), last=5), ["a"], {}, where) is None
    change = spread(closed((0, ("b", "c", "d")), last=5), ["e", "f"], {"e": 1}, where)
    assert change is not None and change.metadata.fragments[0].bookies == ("b", "f", "d")


def test_only_copies_of_one_entry_are_moved_apart() -> None:
    where = places(a="1", b="2", c="3", d="1", e="4").__getitem__
    striped = closed((0, ("a", "b", "d", "c")), last=9, write_quorum=2)
    assert crowding(striped, where) == Clashes() and spread(striped, ["e"], {}, where) is None
    assert crowding(closed((0, ("a", "d", "b", "c")), last=9, write_quorum=2), where).nodes


def test_a_fragment_without_entries_is_not_crowded() -> None:
    where = places(a="1", b="1", c="2", d="3").__getitem__
    for ledger in (closed((0, ("a", "b", "c")), last=-1), closed((0, ("a", "c", "d")), (6, ("a", "b", "c")), last=5)):
        assert crowding(ledger, where) == Clashes() and spread(ledger, ["d"], {}, where) is None
