"""Counts of messages by position, bounded."""

from magnetar.actors.dispatch.message_counts import MessageCounts
from support.clients.wire_peer import entry


def test_known_counts_are_not_parsed_again_and_unknown_ones_are():
    counts = MessageCounts()
    counts.remember((1, 0), 7)
    assert counts.of((1, 0), b"not even an entry") == 7
    assert counts.of((1, 1), entry(messages=3)) == 3
    assert counts.of((1, 2), entry()) == 1


def test_an_entry_that_cannot_be_parsed_costs_one():
    assert MessageCounts().of((1, 0), b"rubbish") == 1


def test_the_oldest_are_forgotten():
    counts = MessageCounts(generation_entries_max=10)
    for index in range(35):
        counts.remember((1, index), 2)
    assert counts.of((1, 34), b"") == 2 and counts.of((1, 25), b"") == 2
    assert counts.of((1, 0), entry(messages=5)) == 5
    assert len(counts._young) + len(counts._old) <= 20


def test_chunks_are_known_until_the_last_of_them_is_forgotten():
    counts = MessageCounts(generation_entries_max=2)
    assert not counts.has_chunks
    counts.of((1, 0), entry(uuid="u", chunk_id=0, num_chunks_from_msg=2))
    assert counts.has_chunks and counts.is_chunk((1, 0))
    for index in range(1, 4):
        counts.remember((1, index), 1)
    assert counts.has_chunks and counts.is_chunk((1, 0)), "it is in the old generation"
    counts.remember((1, 4), 1)
    assert not counts.has_chunks and not counts.is_chunk((1, 0))
