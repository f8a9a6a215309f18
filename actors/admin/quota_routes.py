"""The admin's paths that set and remove backlog quotas, one type at a time. `GET …/backlogQuotaMap` shows them all.

Statuses are Pulsar's 4.2.4. It answers 500 for a namespace's quota without a body; here that is 400.
"""

from collections.abc import Mapping
from typing import cast

from aiohttp import web

from ...protocol.lenient_values import as_whole
from ...protocol.plain_values import is_text_map
from ...protocol.topics import TopicName
from ...runtime.settings.declarations import Settings
from ..policies.backlog_quota import BacklogQuota, QuotaPolicy, QuotaType
from ..policies.kinds import Choice, RecordOf
from .policy_routes import topic_with_policies
from .requests import Owners, json_body, namespace_of, no_content
from .routes import NAMESPACE_ROUTE, TOPIC_ROUTE, Parameter, Route, delete, post

POLICY = "backlog_quota_map"
Quotas = Mapping[str, object]
QUOTA = RecordOf(BacklogQuota).schema
TYPE = Parameter("backlogQuotaType", Choice(QuotaType).schema, "What is bounded.")


class QuotaRoutes:
    """See the module."""

    def __init__(self, settings: Settings, owners: Owners) -> None:
        self._settings = settings
        self._ask = owners.coordinator.ask

    def routes(self) -> list[Route]:
        namespace = NAMESPACE_ROUTE + "/backlogQuota"
        topic = TOPIC_ROUTE + "/backlogQuota"
        return [
            post(namespace, self.set_of_namespace, QUOTA, query=(TYPE,)),
            delete(namespace, self.remove_of_namespace, query=(TYPE,)),
            post(topic, self.set_of_topic, QUOTA, optional_body=True, query=(TYPE,)),
            delete(topic, self.remove_of_topic, query=(TYPE,)),
        ]

    async def set_of_namespace(self, request: web.Request) -> web.Response:
        """Set a backlog quota of type `backlogQuotaType`. Body: `limitSize` or `limitTime`, and `policy`."""
        namespace, kind, quota = namespace_of(request), _type(request), _quota(await json_body(request))
        if quota is None:
            raise web.HTTPBadRequest(text="the body is empty: send limitSize or limitTime, and policy")
        await self._set_namespace(namespace, kind, quota)
        return no_content()

    async def remove_of_namespace(self, request: web.Request) -> web.Response:
        """Let the broker's settings say the backlog quota of type `backlogQuotaType`."""
        await self._set_namespace(namespace_of(request), _type(request), None)
        return no_content()

    async def set_of_topic(self, request: web.Request) -> web.Response:
        """Set a backlog quota of type `backlogQuotaType`, for one topic. Body: as for a namespace."""
        topic = topic_with_policies(request, self._settings)
        await self._set_topic(topic, _type(request), _quota(await json_body(request)))
        return no_content()

    async def remove_of_topic(self, request: web.Request) -> web.Response:
        """Let the namespace say the backlog quota of type `backlogQuotaType`."""
        await self._set_topic(topic_with_policies(request, self._settings), _type(request), None)
        return no_content()

    async def _set_namespace(self, namespace: str, kind: QuotaType, quota: Quotas | None) -> None:
        found = (await self._ask.namespace(namespace=namespace)).policies or {}
        await self._ask.set_policy(namespace=namespace, policy=POLICY, value=_changed(found, kind, quota))

    async def _set_topic(self, topic: TopicName, kind: QuotaType, quota: Quotas | None) -> None:
        found = (await self._ask.topic_policies(topic=topic.full)).policies or {}
        await self._ask.set_topic_policy(topic=topic.full, policy=POLICY, value=_changed(found, kind, quota))


def _type(request: web.Request) -> QuotaType:
    """Raises HTTP 404, as Pulsar does, for an unknown type."""
    given = request.query.get("backlogQuotaType", QuotaType.DESTINATION_STORAGE.value)
    try:
        return QuotaType(given)
    except ValueError:
        raise web.HTTPNotFound(text=f"there is no type of backlog quota {given[:40]!r}") from None


def _quota(body: object) -> Quotas | None:
    """Raises HTTP 400 for anything but a quota with a policy, and an empty body."""
    if body is None:
        return None
    words = [one.value for one in QuotaPolicy]
    if not is_text_map(body) or body.get("policy") not in words:
        raise web.HTTPBadRequest(text=f"a backlog quota is an object with a policy, one of {', '.join(words)}")
    given = {"limitSize": body.get("limitSize", body.get("limit", 0)), "limitTime": body.get("limitTime", 0)}
    numbers = {name: as_whole(value) for name, value in given.items()}
    for name, value in numbers.items():
        if type(value) is not int:
            raise web.HTTPBadRequest(text=f"{name} is a whole number, not {value!r:.100}")
    return {**numbers, "policy": body["policy"]}


def _changed(policies: Mapping[str, object], kind: QuotaType, quota: Quotas | None) -> dict[str, object] | None:
    """All quotas of a level with one of them changed; None for none."""
    found = dict(cast("Mapping[str, object]", policies.get(POLICY, {})))
    found.pop(kind.value, None)
    if quota is not None:
        found[kind.value] = quota
    return found or None
