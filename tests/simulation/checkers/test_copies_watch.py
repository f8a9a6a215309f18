"""The checker of copies sees what is on the disks, and tells no bookie of it."""

from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata
from simulation.checkers.copies_watch import lacking_copies
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import DIRECTORY, Bookie, body_of

LEDGER = LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("a", "b", "c")),)).close(9, 1000)


async def test_a_bit_that_flipped_at_rest_is_seen_until_the_entry_is_stored_again() -> None:
    bookies: dict[str, Bookie] = {}
    for name in LEDGER.bookies:
        bookie = await Bookie.started(FaultyFiles())
        await bookie.add_many(7, range(10))
        bookies[name] = await bookie.restarted()
    stores = {name: bookie.store for name, bookie in bookies.items()}
    assert lacking_copies([LEDGER], stores) == []
    hurt = bookies["b"]
    path = f"{DIRECTORY}/0000000000000001.journal"
    hurt.files.flip_bit(path, hurt.files.read_bytes(path).index(body_of(7, 4)))
    assert [sentence[:26] for sentence in lacking_copies([LEDGER], stores)] == ["I8 copies: entry (7, 4) is"]
    assert hurt.store.entries.damage.notes.count == 0, "to look is not to tell"
    assert len(lacking_copies([LEDGER], {"a": stores["a"]})) == 1, "a bookie that is away has no copies"
    await hurt.read(7, 4, 4)
    await hurt.add(7, 4, recovery=True)
    assert lacking_copies([LEDGER], stores) == []
    for bookie in bookies.values():
        await bookie.store.close()
