"""`lag`: how far a streaming query is behind the end of its topics, and how fast it reads.

Spark's progress has the rows and the rates of each source. PySpark 4.2 has no place where a source in Python says more:
it asks such a source for offsets, and its `metrics` stay empty. But the progress has the offsets. So `lag` asks the
brokers how many entries lie behind them now.

Brokers know entries, and not how many messages a batch has. So the number of rows is about what the last micro-batch
had for each of its entries.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import NamedTuple

from ...bulk.access import admin_through_ray, ask_admin, topic_path
from ...bulk.loop_thread import run_apart
from ...protocol.errors import ClusterError, InvalidConfiguration
from ...protocol.plain_values import is_list, is_text_map
from ...runtime.tasks import together
from ..source.offsets import Offset, Reached, place_in

TOPICS_AT_ONCE = 16
"""How many topics are asked at once."""
TOPIC_PREFIX = "persistent://"


class StreamLag(NamedTuple):
    """How far a query is behind its topics. All but `topics` is the sum of all topics of all its sources."""

    entries: int
    """What is not read yet, in entries, as the backlog of a subscription counts them. A batch is an entry."""
    size_bytes: int
    """About how many bytes that is in the topics."""
    rows: int | None
    """About how many rows that is. None if the progress does not say how many rows an entry has."""
    entries_per_s: float
    """About how many entries a second the query read in its last micro-batch; 0 if that was empty."""
    topics: Mapping[str, int]
    """`entries` of each topic or partition, by its full name."""


class _Ledger(NamedTuple):
    number: int
    entries: int
    size_bytes: int


class _Read(NamedTuple):
    """What one source of a progress says."""

    start: Offset
    end: Offset
    topics: frozenset[str]
    rows: int | None
    per_s: float
    """Rows a second, or entries a second where there is no number of rows."""


def lag(progress: Mapping[str, object] | None, admin_url: str | None = None) -> StreamLag:
    """Ask how much of its topics a streaming query has not read yet.

    The figure is that of now. It counts what lies behind the micro-batch of `progress`, in the topics that it names. A
    partition that came later counts with the next progress.

    Args:
        progress: `query.lastProgress` of a query whose source is `magnetar`, or `last_progress` of `stream`.
        admin_url: `http://host:port` of the cluster's admin HTTP. None finds the cluster through Ray.

    Returns:
        The lag. A topic that was deleted has none.

    Raises:
        InvalidConfiguration: If there is no progress yet, or none of its sources is `magnetar`.
        ClusterError: If there is no cluster on this Ray, or its admin HTTP gives another answer.
        ConnectError: If nothing answers at `admin_url`.
    """
    reads = [] if progress is None else _reads(progress)
    if not reads:
        raise InvalidConfiguration("the progress has no offsets of Magnetar: wait for the first micro-batch of a query")
    return run_apart(_lag(reads, admin_url))


async def _lag(reads: list[_Read], admin_url: str | None) -> StreamLag:
    url = await admin_through_ray() if admin_url is None else admin_url
    asking = asyncio.Semaphore(TOPICS_AT_ONCE)
    names = sorted({name for read in reads for name in read.topics})
    chains = dict(zip(names, await together([_ledgers(url, name, asking) for name in names]), strict=True))
    topics: dict[str, int] = {}
    size_bytes, rows, entries_per_s = 0, 0, 0.0
    is_known = True
    for read in reads:
        done = sum(_between(chains[name], _start(read, name), _whole(read.end, name))[0] for name in read.topics)
        left = {name: _between(chains[name], place_in(read.end, name)) for name in read.topics}
        entries = sum(found for found, _ in left.values())
        for name, (found, size) in left.items():
            topics[name] = topics.get(name, 0) + found
            size_bytes += size
        if read.rows is None:
            is_known, entries_per_s = False, entries_per_s + read.per_s
        elif read.rows and done:
            rows += round(entries * read.rows / done)
            entries_per_s += read.per_s * done / read.rows
        elif entries:
            is_known = False
    return StreamLag(sum(topics.values()), size_bytes, rows if is_known else None, entries_per_s, topics)


def _reads(progress: Mapping[str, object]) -> list[_Read]:
    """The sources of Spark's progress, or that of a `TopicQuery`, which has the same names one level higher."""
    if "numInputEntries" in progress:
        return [_read_in(progress, None, "inputEntriesPerSecond")]
    sources = progress.get("sources")
    found = [one for one in sources if is_text_map(one)] if is_list(sources) else []
    return [_read_in(one, "numInputRows", "processedRowsPerSecond") for one in found if _offset(one.get("endOffset"))]


def _read_in(source: Mapping[str, object], rows: str | None, per_s: str) -> _Read:
    end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
    topics = frozenset({*end, *latest})
    known = None if rows is None else int(_number(source, rows))
    return _Read(_offset(source.get("startOffset")), end, topics, known, _number(source, per_s))


def _number(source: Mapping[str, object], name: str) -> float:
    found = source.get(name)
    if not isinstance(found, int | float):
        raise InvalidConfiguration(f"the progress has no number {name}: pass query.lastProgress as it is")
    return found


def _offset(given: object) -> dict[str, str]:
    """An offset of ours, which Spark gives as text; empty for another source's, and for none."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return {}  # of Java's null, which is the start of the first micro-batch
    if not is_text_map(found) or not all(name.startswith(TOPIC_PREFIX) for name in found):
        return {}
    return {name: str(Reached.parse(str(place))) for name, place in found.items()}


def _start(read: _Read, topic: str) -> Reached:
    if topic in read.start:
        return place_in(read.start, topic)
    since = place_in(read.end, topic).since  # of the first micro-batch, whose start Spark does not say
    return Reached(*since)


def _whole(offset: Offset, topic: str) -> Reached:
    """The end of the entry up to which a partition was read."""
    return place_in(offset, topic)._replace(batch_index=-1)


async def _ledgers(url: str, topic: str, asking: asyncio.Semaphore) -> list[_Ledger]:
    """The ledgers that a topic has now; none if it was deleted."""
    asked = topic_path(topic, "/internalStats")
    async with asking:
        answer = await ask_admin(url, asked, accepted=(404,))
    if not answer:
        return []
    try:
        ledgers: list[dict[str, int]] = json.loads(answer)["ledgers"]
        return [_Ledger(int(one["ledgerId"]), int(one["entries"]), int(one["size"])) for one in ledgers]
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{url}{asked} does not answer as Magnetar's admin HTTP does: {error!r}") from error


def _between(ledgers: list[_Ledger], begin: Reached, end: Reached | None = None) -> tuple[int, int]:
    """Entries and about the bytes behind `begin`, up to `end` or the end of the topic.

    An entry counts as not read when of its batch only a part is read.
    """
    entries = size_bytes = 0
    for ledger in ledgers:
        first = _read_of(ledger, begin)
        last = ledger.entries if end is None else _read_of(ledger, end)
        if last > first:
            entries += last - first
            size_bytes += ledger.size_bytes * (last - first) // ledger.entries
    return entries, size_bytes


def _read_of(ledger: _Ledger, place: Reached) -> int:
    """How many entries of a ledger lie up to a place."""
    if place.ledger != ledger.number:
        return ledger.entries if place.ledger > ledger.number else 0
    whole = place.entry + (place.batch_index < 0)
    return min(max(whole, 0), ledger.entries)
