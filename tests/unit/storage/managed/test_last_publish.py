"""When a topic got its last message: as noted, and as read from the last message after a load."""

import asyncio

from magnetar.protocol.errors import EntryCorrupt
from magnetar.storage.managed.publish_times import LastPublish
from support.clients.wire_peer import entry
from support.fakes.managed_ledger import MemoryManagedLedger


def with_entries(count: int) -> MemoryManagedLedger:
    ledger = MemoryManagedLedger()
    ledger.entries = [((1, index), entry(at=100 + index)) for index in range(count)]
    return ledger


async def test_a_topic_without_messages_has_no_last_publish():
    last = LastPublish(with_entries(0))
    await last.learn()
    last.appended(5)
    assert last.at_ms == 0


async def test_an_append_is_noted_and_news_without_one_is_not():
    ledger = with_entries(1)
    last = LastPublish(ledger)
    ledger.entries.append(((1, 1), entry()))
    last.appended(500)
    last.appended(600)
    assert last.at_ms == 500


async def test_after_a_load_the_last_message_is_asked_once():
    ledger = with_entries(3)
    last = LastPublish(ledger)
    await last.learn()
    await last.learn()
    assert (last.at_ms, ledger.reads) == (102, 1)


async def test_a_last_message_that_cannot_be_read_leaves_the_time_unknown():
    ledger = with_entries(3)
    ledger.fail_reads = [EntryCorrupt("no copy")]
    last = LastPublish(ledger)
    await last.learn()
    assert last.at_ms == 0


async def test_a_publish_during_the_read_is_the_last_one():
    ledger = with_entries(3)
    last = LastPublish(ledger)
    learning = asyncio.create_task(last.learn())
    await asyncio.sleep(0)
    ledger.entries.append(((1, 3), entry()))
    last.appended(900)
    await learning
    assert last.at_ms == 900
