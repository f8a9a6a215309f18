"""Target: the records of the metadata store and of cursor ledgers, read back from any bytes."""

from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
from fuzz_mutation import mutate
from fuzz_target import Target, Wrong, quietly

from magnetar.protocol.errors import MetadataError
from magnetar.runtime.rpc_messages import pack, unpack
from magnetar.storage.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.storage.managed_ledger_record import LedgerInfo, ManagedLedgerRecord

_LEDGER = LedgerMetadata(
    ledger_id=7,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(9, ("b1", "b4", "b3"))),
    state=LedgerState.CLOSED,
    last_entry=20,
    length=1000,
)
_TOPIC = ManagedLedgerRecord(3, (LedgerInfo(7, 1, 21, 1000, True, 5), LedgerInfo(8, 2, 0, 0, False, 0)), (5, 6), 8)

_RECORDS: list[tuple[Callable[[bytes], Any], Callable[[Any], bytes], bytes]] = [
    (LedgerMetadata.unpack, LedgerMetadata.pack, _LEDGER.pack()),
    (ManagedLedgerRecord.unpack, ManagedLedgerRecord.pack, _TOPIC.pack()),
]
_ODD: list[Any] = [
    None,
    -1,
    0,
    1 << 63,
    1.5,
    float("inf"),
    float("nan"),
    "",
    "text",
    b"",
    [],
    {},
    [[]],
    [1, 2, 3],
    True,
]


def make(random: Random) -> bytes:
    which = random.randrange(len(_RECORDS))
    data = _RECORDS[which][2]
    if random.random() < 0.6:
        value = unpack(data)
        _replace(value, random)
        data = pack(value)
    return bytes([which]) + (mutate(data, random) if random.random() < 0.5 else data)


def _replace(value: Any, random: Random) -> None:
    """Put something odd somewhere into nested lists and dictionaries."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    if not keys:
        return
    key = random.choice(list(keys))
    if isinstance(value[key], dict | list) and value[key] and random.random() < 0.7:
        _replace(value[key], random)
    else:
        value[key] = random.choice(_ODD)


def take(data: bytes) -> None:
    """A record comes out, and packs again to the same meaning, or MetadataError."""
    if not data:
        return
    read, write, _ = _RECORDS[data[0] % len(_RECORDS)]
    record = quietly(read, data[1:], allowed=(MetadataError,))
    if record is not None:
        try:
            again = read(write(record))
        except (OverflowError, msgpack.PackOverflowError):
            return  # numbers above 64 bits cannot come from bytes in the first place
        if again != record:
            raise Wrong("a record is not what it was")


TARGETS = [Target("records", make, take)]
