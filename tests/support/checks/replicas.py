"""Where the copies of every ledger really are, asked of the bookies themselves over the internal RPC."""

import asyncio
from typing import Any

import ray

from magnetar.actors.members.contracts_bookie import Part
from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.cluster.directory import ClusterDirectory
from magnetar.protocol.errors import RpcDisconnected, RpcTimeout
from magnetar.protocol.names import COORDINATOR_ACTOR, RAY_NAMESPACE
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import rpc_connect
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata.entry_gaps import ranges_of
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata

FRAME_MAX = 8 << 20
PARTS_PER_QUESTION = 500


def missing_copies(copies):
    """What closed ledgers lack: (ledger, bookie, first, last) for a range that a bookie owes and does not hold whole,
    and (ledger, None, 0, last) for ledgers with fewer than `copies` copies of each entry.
    """
    return asyncio.run(_missing_copies(copies))


async def _missing_copies(copies):
    coordinator: Any = ray.get_actor(COORDINATOR_ACTOR, RAY_NAMESPACE)
    known = ClusterDirectory((await coordinator.client_information.remote())["data_directory"]).load_identity()
    keys = RootKeys(known.secret)
    env = Environment.real()

    async def locate():
        return tuple(await coordinator.address.remote())

    # It has the name of a broker that should run, since no other may read metadata. It does not register, so no topics
    # come to it, and that broker keeps its session.
    broker = (await coordinator.status.remote())["desired"]["brokers"][0]
    link = CoordinatorClient(
        env, Identity(known.cluster_id, "broker", broker, "replica-check"), keys, Settings(), locate
    )
    try:
        await link.start()
        link.bookies.update(await link.ask.bookies())
        missing, owed = [], {}
        async for ledger in _closed_ledgers(link.metadata):
            if ledger.write_quorum < copies:
                missing.append((ledger.ledger_id, None, 0, ledger.last_entry))
            for bookie, entries in _owed(ledger).items():
                parts = [Part(ledger.ledger_id, ledger.nonce, first, last, 0, 1, 1) for first, last in entries]
                owed.setdefault(bookie, []).extend(parts)
        identity = Identity(known.cluster_id, "coordinator", "replica-check", "1")
        for bookie, parts in owed.items():
            connection = await _connect(env, identity, keys, link, bookie)
            missing += [(part.ledger, bookie, part.first, part.last) for part in await _lacking(connection, parts)]
            if connection is not None:
                connection.close()
                await connection.wait_closed()
        return missing
    finally:
        await link.close()
        env.close()


async def _closed_ledgers(metadata):
    """All that hold entries."""
    after = ""
    while page := await metadata.list("ledgers/", after=after, limit=1000):
        for _, stored in page:
            ledger = LedgerMetadata.unpack(stored.value)
            if ledger.closed and ledger.last_entry >= 0:
                yield ledger
        after = page[-1][0]


def _owed(ledger):
    """By bookie: the ranges of entries that it should hold."""
    entries: dict[str, list[int]] = {}
    for entry in range(ledger.last_entry + 1):
        for bookie in ledger.write_set(entry):
            entries.setdefault(bookie, []).append(entry)
    return {bookie: ranges_of(found) for bookie, found in entries.items()}


async def _connect(env, identity, keys, link, bookie):
    """A connection to a bookie, None if it is not there."""
    place = link.bookies.bookies.get(bookie)
    if place is None:
        return None
    try:
        return await rpc_connect(env, place.host, place.port, identity, keys, frame_size_max=FRAME_MAX)
    except (RpcDisconnected, RpcTimeout):
        return None


async def _lacking(connection, parts):
    """Those of the parts that a bookie does not hold whole: all of them if it does not answer."""
    found, begin = [], 0
    while begin < len(parts):
        asked = parts[begin : begin + PARTS_PER_QUESTION]
        try:
            if connection is None:
                return parts
            answer = await connection.call("lacking", parts=asked)
        except (RpcDisconnected, RpcTimeout):
            return parts
        found += [asked[index] for index in answer["found"]]
        begin += answer["examined"]
    return found
