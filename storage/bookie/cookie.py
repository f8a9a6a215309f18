"""A bookie's cookie: its identity, in its directory and in the metadata, so that a wiped or foreign disk is noticed.

What a start finds, and what follows:

    directory          metadata
    nothing            nothing           a new bookie: store, then cookie file, then record
    cookie, no data    nothing           a first start that was interrupted before its last step: finished now
    cookie             the same cookie   the normal start
    nothing            a cookie          the disk was lost: refused, or started empty in limbo if the operator accepts
    anything else                        refused: partial or foreign

The record is only ever replaced by an accepted loss. "Nothing" includes a store that was made and never used. The
cookie file comes after it, so a start that ended between the two is repeated. It includes nothing else: a directory
with data but no cookie is refused. While the metadata has no record, nothing can have been stored, so repeating loses
nothing. Once it has a record, an unused store without its cookie is a lost disk.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from ...protocol.errors import BadVersion, CookieMismatch, FormatTooNew, ProtocolError
from ...runtime.environment import Environment
from ...runtime.files import Files
from ..metadata import keys as metadata_keys
from ..metadata.store import MetadataStore, pack, unpack
from .replay import format_directory, holds_store

COOKIE_NAME = "cookie"
LAYOUT = 1
"""Of a bookie's directory: its files and their formats. Where a cookie names none, it is 1. A version of Magnetar that
changes a format raises it, and writes it into the cookie. Older versions then refuse the directory.
"""
_LOST = "the bookie started with an empty disk after its disk was lost"


@dataclass(frozen=True)
class Cookie:
    """`id` is the bookie's, `instance` a random name for this life of its disk."""

    id: str
    cluster_id: str
    instance: str


def read_cookie(files: Files, directory: str) -> Cookie | None:
    """The cookie in a directory, None when there is none.

    Raises CookieMismatch when it is unreadable, FormatTooNew when a later version wrote the directory.
    """
    path = f"{directory}/{COOKIE_NAME}"
    if not files.exists(path):
        return None
    try:
        record: dict[str, Any] = json.loads(files.read_bytes(path))
        layout = record.get("layout", 1)
        if not isinstance(layout, int) or layout < 1:
            raise ValueError(f"{layout!r:.100} is no layout")
        if layout > LAYOUT:
            raise FormatTooNew(
                f"{directory} has layout {layout}, and this version of Magnetar reads layout {LAYOUT}: start the "
                "bookie with the version that wrote it, or a later one"
            )
        return Cookie(str(record["id"]), str(record["cluster_id"]), str(record["instance"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CookieMismatch(f"the cookie {path} cannot be decoded: {error}") from error


async def claim_directory(
    env: Environment,
    directory: str,
    bookie_id: str,
    cluster_id: str,
    metadata: MetadataStore,
    *,
    accept_lost_disk: bool = False,
    lost_instance: str = "",
) -> Cookie:
    """Carry out the table above and return the cookie, the directory then holding a store of its instance.

    The loss of a disk is accepted with `accept_lost_disk`, or if `lost_instance` is the instance in its cookie. The
    latter holds for one loss only, however often the bookie starts with it.

    Raises CookieMismatch, and what the metadata store and the disk raise.
    """
    key = metadata_keys.bookie(bookie_id)
    found, has_data = await env.offload.run(_look, env.files, directory)
    record = await metadata.get(key)
    known = cookie_of_record(record.value) if record is not None else None
    if lost_instance and known is not None and known.instance == lost_instance:
        accept_lost_disk = True
    if found is not None and (found.id, found.cluster_id) != (bookie_id, cluster_id):
        raise CookieMismatch(
            f"{directory} belongs to bookie {found.id} of cluster {found.cluster_id}, "
            f"not to {bookie_id} of cluster {cluster_id}"
        )
    if found is not None and known == found:
        return found
    if accept_lost_disk and found is not None and known is not None:
        # An empty disk was accepted before, and the start ended between its cookie and the metadata.
        if not await env.offload.run(_has_segments, env.files, directory):
            found, has_data = None, False
    if found is None and has_data:
        raise CookieMismatch(
            f"{directory} holds data but no cookie, so part of it is missing: restore the whole directory"
        )
    if found is not None and known is not None:
        raise CookieMismatch(f"{directory} is not the disk on which bookie {bookie_id} last ran: put that disk back")
    if found is None and known is not None and not accept_lost_disk:
        raise CookieMismatch(
            f"bookie {bookie_id} has lost its disk: {directory} is empty. Put the disk back, or add a bookie "
            f"(magnetar scale --bookies) and drain this one (magnetar drain {bookie_id}). With the cluster stopped you "
            f"may also accept the loss (--accept-lost-disk {bookie_id}). Its data is copied from other bookies"
        )
    if found is None:
        found = Cookie(bookie_id, cluster_id, env.random.hex(16))
        await env.offload.run(_create, env.files, directory, found, _LOST if known is not None else "")
    elif await env.offload.run(_has_segments, env.files, directory):
        raise CookieMismatch(
            f"{directory} holds data, but the metadata does not know bookie {bookie_id}: choose the metadata store of "
            "its cluster"
        )
    try:
        await metadata.put(key, pack(asdict(found)), None if record is None else record.version)
    except BadVersion as error:
        raise CookieMismatch(f"another bookie registered as {bookie_id} at the same moment") from error
    return found


def _look(files: Files, directory: str) -> tuple[Cookie | None, bool]:
    files.make_directory(directory)
    return read_cookie(files, directory), holds_store(files, directory)


def _has_segments(files: Files, directory: str) -> bool:
    return any(name.endswith((".journal", ".compacted")) for name in files.list(directory))


def _create(files: Files, directory: str, cookie: Cookie, limbo: str) -> None:
    format_directory(files, directory, cookie.instance, limbo)
    files.write_atomic(
        f"{directory}/{COOKIE_NAME}", json.dumps({**asdict(cookie), "layout": LAYOUT}, indent=1).encode()
    )


def cookie_of_record(value: bytes) -> Cookie:
    """The cookie in a metadata record. Raises CookieMismatch for anything else."""
    try:
        record = unpack(value)
        return Cookie(str(record["id"]), str(record["cluster_id"]), str(record["instance"]))
    except (KeyError, TypeError, ProtocolError) as error:
        raise CookieMismatch(f"the cookie in the metadata is malformed: {error}") from error
