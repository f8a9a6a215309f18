"""Where the copies of every ledger really are, asked of the bookies themselves over the internal RPC."""

import asyncio
from typing import Any

import ray

from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.cluster.directory import ClusterDirectory
from magnetar.protocol.errors import RpcDisconnected, RpcTimeout
from magnetar.protocol.names import COORDINATOR_ACTOR, RAY_NAMESPACE
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import rpc_connect
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata

FRAME_MAX = 8 << 20


def missing_copies(copies):
    """What closed ledgers lack: (ledger, bookie, first, last) for entries absent from a bookie that owes them, and
    (ledger, None, 0, last) for ledgers with fewer than `copies` copies of each entry.
    """
    return asyncio.run(_missing_copies(copies))


async def _missing_copies(copies):
    coordinator: Any = ray.get_actor(COORDINATOR_ACTOR, RAY_NAMESPACE)
    known = ClusterDirectory((await coordinator.client_information.remote())["data_directory"]).load_identity()
    keys = RootKeys(known.secret)
    env = Environment.real()

    async def locate():
        return tuple(await coordinator.address.remote())

    # Not registered, so no topics come to it.
    link = CoordinatorClient(env, Identity(known.cluster_id, "broker", "replica-check", "1"), keys, Settings(), locate)
    identity = Identity(known.cluster_id, "coordinator", "replica-check", "1")
    held_by, connections = {}, {}
    try:
        await link.start()
        link.bookies.update(await link.ask.bookies())
        missing = []
        for _, stored in await link.metadata.list("ledgers/", limit=1000):
            ledger = LedgerMetadata.unpack(stored.value)
            if not ledger.closed or ledger.last_entry < 0:
                continue
            if ledger.write_quorum < copies:
                missing.append((ledger.ledger_id, None, 0, ledger.last_entry))
            for bookie in dict.fromkeys(name for fragment in ledger.fragments for name in fragment.bookies):
                if bookie not in connections:
                    connections[bookie] = await _connect(env, identity, keys, link, bookie)
                key = ledger.ledger_id, bookie
                held_by[key] = await _entries_held(connections[bookie], ledger)
            for entry in range(ledger.last_entry + 1):
                for bookie in ledger.write_set(entry):
                    if entry not in held_by[ledger.ledger_id, bookie]:
                        missing.append((ledger.ledger_id, bookie, entry, entry))
        return missing
    finally:
        for connection in connections.values():
            if connection is not None:
                connection.close()
                await connection.wait_closed()
        await link.close()
        env.close()


async def _connect(env, identity, keys, link, bookie):
    """A connection to a bookie, None if it is not there."""
    place = link.bookies.bookies.get(bookie)
    if place is None:
        return None
    try:
        return await rpc_connect(env, place.host, place.port, identity, keys, frame_size_max=FRAME_MAX)
    except (RpcDisconnected, RpcTimeout):
        return None


async def _entries_held(connection, ledger):
    if connection is None:
        return ()
    held, following = set(), 0
    while following <= ledger.last_entry:
        answer = await connection.call(
            "entry_ids", ledger=ledger.ledger_id, nonce=ledger.nonce, first=following, last=ledger.last_entry
        )
        held |= {entry for first, last in answer["ranges"] for entry in range(first, last + 1)}
        following = answer["next"]
    return held
