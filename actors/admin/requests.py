"""What the admin's handlers share: topics and bodies out of requests, JSON answers, questions to a topic's owner."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TypedDict, TypeVar

from aiohttp import web

from ...protocol.errors import (
    CoordinatorUnavailable,
    InvalidConfiguration,
    NotAllowedError,
    ServiceUnitNotReady,
    TopicNotFound,
)
from ...protocol.lenient_values import as_text, as_whole
from ...protocol.plain_values import is_text_map
from ...protocol.topics import TopicName
from ...runtime import retry
from ...runtime.backoff import LimitedBackoff
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ..members.contracts_broker import BrokerContract
from ..members.coordinator_link import CoordinatorClient
from ..members.peer_calls import MemberCalls
from ..policies.effective import EffectivePolicies
from .routes import WHOLE, ValueSchema

BODY_TIMEOUT_S = 10.0
"""Requests under way are few: one whose body does not come may not hold its place."""
MOVING_LIMIT_S = 8.0
MOVING_RETRY_INITIAL_S = 0.05
MOVING_RETRY_MAX_S = 1.0
CALLS_AT_A_TIME = 16
LONG_MAX = (1 << 63) - 1

OWNER_TIMEOUT_S = 30.0

A = TypeVar("A")
Question = Callable[[BrokerContract, str], Awaitable[A]]
"""What to ask of the broker that owns a topic, given by its full name."""

MESSAGE_ID: ValueSchema = {
    "type": "object",
    "properties": {name: WHOLE for name in ("ledgerId", "entryId", "partitionIndex", "batchIndex", "batchSize")},
    "required": ["ledgerId", "entryId"],
}
PLACE: ValueSchema = {"anyOf": [MESSAGE_ID, {"type": "string", "enum": ["earliest", "latest"]}]}
"""A place in a topic; see `position_of`."""


class Owners:
    """Asks the coordinator, and whichever brokers own a topic now."""

    def __init__(
        self, env: Environment, coordinator: CoordinatorClient, brokers: MemberCalls[BrokerContract], settings: Settings
    ) -> None:
        self.coordinator = coordinator
        self._settings = settings
        self._env = env
        self._brokers = brokers

    async def ask(self, topic: str, question: Question[A], *, create: bool | None = False) -> A:
        """Ask the broker that owns a partition or plain topic; while it moves, try again for a while.

        Raises what the coordinator's `assign` and the method raise.
        """

        async def ask_the_owner() -> A:
            owner = await self.coordinator.ask.assign(topic=topic, create=create)
            return await question(self._brokers.of(owner.broker, timeout_s=OWNER_TIMEOUT_S), topic)

        return await retry.limited(
            LimitedBackoff(self._env.random, MOVING_RETRY_INITIAL_S, MOVING_RETRY_MAX_S, MOVING_LIMIT_S),
            ask_the_owner,
            retriable=lambda error: isinstance(error, ServiceUnitNotReady | CoordinatorUnavailable),
            on_retry=retry.silently,
        )

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self._env.clock.now_ms()

    def of(self, broker_id: str) -> BrokerContract:
        """The methods of a live broker."""
        return self._brokers.of(broker_id, timeout_s=OWNER_TIMEOUT_S)

    async def ask_plain(self, topic: TopicName, question: Question[A]) -> A:
        """Ask the owner of a partition or plain topic. As in Pulsar, one with partitions is not found itself.

        Raises as `ask` does.
        """
        try:
            return await self.ask(topic.full, question)
        except NotAllowedError as error:
            if await self.partitions(topic):
                raise TopicNotFound(str(error)) from None
            raise

    async def ask_any(self, question: Callable[[BrokerContract], Awaitable[A]]) -> A:
        """Ask a live broker something that every broker knows; while there is none, try again for a while.

        Raises what the method raises, and ServiceUnitNotReady.
        """

        async def ask_one() -> A:
            brokers = sorted(self.coordinator.brokers)
            if not brokers:
                raise ServiceUnitNotReady("no broker is alive: start one")
            return await question(self._brokers.of(self._env.random.choice(brokers), timeout_s=OWNER_TIMEOUT_S))

        return await retry.limited(
            LimitedBackoff(self._env.random, MOVING_RETRY_INITIAL_S, MOVING_RETRY_MAX_S, MOVING_LIMIT_S),
            ask_one,
            retriable=lambda error: isinstance(error, ServiceUnitNotReady | CoordinatorUnavailable),
            on_retry=retry.silently,
        )

    async def creates_plain(self, namespace: str) -> bool:
        """Whether the first client of a missing topic creates it without partitions. Raises TopicNotFound."""
        own = (await self.coordinator.ask.namespace(namespace=namespace)).policies or {}
        creation = EffectivePolicies.resolve(self._settings, own).auto_topic_creation_override
        return creation.allow and not creation.partitions

    async def partitions(self, topic: TopicName) -> int:
        """How many partitions a topic has, 0 also for one that does not exist."""
        try:
            return await self.coordinator.ask.partitions(topic=topic.full)
        except TopicNotFound:
            return 0

    async def members(self, topic: TopicName, *, create: bool = False) -> list[str]:
        """What a topic consists of: its partitions, or itself. Raises TopicNotFound."""
        partitions = await self.coordinator.ask.partitions(topic=topic.full, create=create)
        return [topic.partition_name(index) for index in range(partitions)] if partitions else [topic.full]

    async def ask_members(self, topic: TopicName, question: Question[A]) -> dict[str, A]:
        """Ask the owner of every partition (or of the plain topic); answers by member name."""
        members = await self.members(topic)
        calls = [lambda name=name: self.ask(name, question) for name in members]
        return dict(zip(members, await at_a_time(calls), strict=True))


async def at_a_time(calls: Sequence[Callable[[], Awaitable[A]]]) -> list[A]:
    """The results of all calls, a bounded number of them under way; the first error is raised when all have ended."""
    permits = asyncio.Semaphore(CALLS_AT_A_TIME)

    async def bounded(call: Callable[[], Awaitable[A]]) -> A:
        async with permits:
            return await call()

    outcomes = await asyncio.gather(*(bounded(call) for call in calls), return_exceptions=True)
    results: list[A] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


def json_answer(value: object, *, status: int = 200) -> web.Response:
    """A JSON body."""
    return web.Response(text=json.dumps(value), content_type="application/json", status=status)


def no_content() -> web.Response:
    """204."""
    return web.Response(status=204)


def topic_of(request: web.Request) -> TopicName:
    """The topic in a path. Raises InvalidTopicName."""
    found = request.match_info
    return TopicName.of(found["tenant"], found["namespace"], found["topic"], found.get("domain", "persistent"))


def domain_of(request: web.Request) -> str:
    """`persistent` or `non-persistent`, of a path that has it."""
    return request.match_info["domain"]


def namespace_of(request: web.Request) -> str:
    """`tenant/namespace` of a path."""
    return f"{request.match_info['tenant']}/{request.match_info['namespace']}"


def flag(request: web.Request, name: str, default: bool = False) -> bool:
    """A boolean in the query. Raises HTTP 400 for anything but true and false."""
    text = request.query.get(name)
    if text is None:
        return default
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise web.HTTPBadRequest(text=f"{name} must be true or false, not {text!r}")


def whole_number(text: str, what: str) -> int:
    """A number in a path or query. Raises HTTP 400."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > LONG_MAX:
        raise web.HTTPBadRequest(text=f"{what} must be a whole number, not {text[:40]!r}")
    return int(text)


async def json_body(request: web.Request) -> object:
    """The body as JSON, None when it is empty. Raises HTTP 400, 408 for a body that does not come, 413."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            text = await request.text()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="the body of the request did not arrive in time") from None
    except (UnicodeDecodeError, LookupError):
        raise web.HTTPBadRequest(text="the body is not text in the charset that its header names") from None
    except web.RequestPayloadError as error:
        raise web.HTTPBadRequest(text=f"the body cannot be read: {error}") from None
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="the body is not JSON") from None


def texts_of(body: object) -> dict[str, str]:
    """An object of texts, without those that are null. Raises HTTP 400 for anything else."""
    if not is_text_map(body):
        raise web.HTTPBadRequest(text="properties are an object of texts")
    given = {key: as_text(value) for key, value in body.items() if value is not None}
    texts = {key: value for key, value in given.items() if isinstance(value, str)}
    if len(texts) < len(given):
        raise web.HTTPBadRequest(text="properties are an object of texts")
    return texts


def position_of(body: object, default: str) -> str | list[int]:
    """A place in a topic as brokers take it, from a message id in JSON. Raises InvalidConfiguration, HTTP 400."""
    if body is None:
        return default
    if isinstance(body, str) and body in ("earliest", "latest"):
        return body
    if is_text_map(body):
        ledger, entry = as_whole(body.get("ledgerId")), as_whole(body.get("entryId"))
        if type(ledger) is int and type(entry) is int:
            if ledger < 0:
                return "earliest"
            if ledger >= LONG_MAX:
                return "latest"
            if -1 <= entry <= LONG_MAX:
                return [ledger, entry]
        elif ledger is not None and entry is not None:
            raise web.HTTPBadRequest(text="ledgerId and entryId of a message id must be whole numbers")
    raise InvalidConfiguration('the body must be a message id: {"ledgerId": …, "entryId": …}, "earliest" or "latest"')


class PlaceInBatch(TypedDict, total=False):
    """What `BrokerContract.reset_cursor` takes beside the entry."""

    batch_index: int
    excluded: bool


def place_in_batch(body: object) -> PlaceInBatch:
    """What a message id in JSON says beside the entry: the index in its batch, and that the message itself is not
    wanted. Only what is not the default, since older brokers do not know it."""
    found = PlaceInBatch()
    if is_text_map(body):
        index, excluded = body.get("batchIndex"), body.get("isExcluded")
        if type(index) is int and 0 <= index < 1 << 31:
            found["batch_index"] = index
        if excluded is True:
            found["excluded"] = True
    return found
