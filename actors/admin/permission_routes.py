"""The admin's paths of permissions: which roles may use a namespace, its topics, and its subscriptions.

They are stored as the policy `auth_policies` of the namespace. Brokers do not check them yet, as a Pulsar without
authorization does not. Statuses are Pulsar's 4.2.4, with three exceptions. A word that is no action is refused (400),
where Pulsar stores null. So is a grant to a topic without a body. A subscription without grants is 404, not 500.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import web

from ...protocol.errors import NoSuchKey
from ...protocol.plain_values import is_list
from ..policies.kinds import TextSet, WordSet
from ..policies.permissions import AuthAction
from .requests import Owners, json_answer, json_body, namespace_of, no_content, topic_of
from .routes import NAMESPACE_ROUTE, TEXTS, TOPIC_ROUTE, Route, delete, get, post
from .shapes import map_of

POLICY = "auth_policies"
OF_NAMESPACE, OF_TOPICS, OF_SUBSCRIPTIONS = "namespace_auth", "destination_auth", "subscription_auth_roles"

Words = dict[str, list[str]]
"""Actions by role, or roles by subscription."""
ACTIONS = WordSet(AuthAction)


class PermissionRoutes:
    """See the module."""

    def __init__(self, owners: Owners) -> None:
        self._ask = owners.coordinator.ask
        self._changes = asyncio.Lock()
        """A change reads all grants of a namespace and writes them: two at once would lose one."""

    def routes(self) -> list[Route]:
        namespace, topic = NAMESPACE_ROUTE + "/permissions", TOPIC_ROUTE + "/permissions"
        return [
            get(namespace, self.of_namespace, map_of(TEXTS)),
            post(namespace + "/{role}", self.grant_namespace, TEXTS),
            delete(namespace + "/{role}", self.revoke_namespace),
            get(namespace + "/subscription", self.of_subscriptions, map_of(TEXTS)),
            post(namespace + "/subscription/{subscription_name}", self.grant_subscription, TEXTS),
            delete(namespace + "/{subscription_name}/{role}", self.revoke_subscription),
            get(topic, self.of_topic, map_of(TEXTS)),
            post(topic + "/{role}", self.grant_topic, TEXTS),
            delete(topic + "/{role}", self.revoke_topic),
        ]

    # -- namespaces and subscriptions ----------------------------------------------------------------------------

    async def of_namespace(self, request: web.Request) -> web.Response:
        """Return which actions each role may take in a namespace. Brokers do not check it yet."""
        return json_answer((await self._grants(namespace_of(request))).get(OF_NAMESPACE, {}))

    async def grant_namespace(self, request: web.Request) -> web.Response:
        """Set which actions a role may take in a namespace. Body: a list of actions. Brokers do not check it yet."""
        role, actions = request.match_info["role"], await _actions(request)
        return await self._change(namespace_of(request), OF_NAMESPACE, lambda roles: roles.update({role: actions}))

    async def revoke_namespace(self, request: web.Request) -> web.Response:
        """Let a role take no action in a namespace."""
        role = request.match_info["role"]
        return await self._change(namespace_of(request), OF_NAMESPACE, lambda roles: roles.pop(role, None))

    async def of_subscriptions(self, request: web.Request) -> web.Response:
        """Return which roles may use each subscription of a namespace. Brokers do not check it yet."""
        return json_answer((await self._grants(namespace_of(request))).get(OF_SUBSCRIPTIONS, {}))

    async def grant_subscription(self, request: web.Request) -> web.Response:
        """Set which roles may use a subscription. Body: a list of roles. Brokers do not check it yet."""
        name, roles = request.match_info["subscription_name"], await json_body(request)
        if not TextSet().fits(roles):
            raise web.HTTPBadRequest(text="the body must be a list of roles")
        given = sorted({*cast("list[str]", roles)})
        return await self._change(namespace_of(request), OF_SUBSCRIPTIONS, lambda found: found.update({name: given}))

    async def revoke_subscription(self, request: web.Request) -> web.Response:
        """Let a role not use a subscription."""
        name, role = request.match_info["subscription_name"], request.match_info["role"]

        def revoke(found: Words) -> None:
            if name not in found:
                raise NoSuchKey(f"no role was allowed to use the subscription {name[:100]}")
            found[name] = [one for one in found[name] if one != role]

        return await self._change(namespace_of(request), OF_SUBSCRIPTIONS, revoke)

    # -- topics --------------------------------------------------------------------------------------------------

    async def of_topic(self, request: web.Request) -> web.Response:
        """Return which actions each role may take at a topic, also by its namespace. Brokers do not check it yet."""
        topic = topic_of(request)
        await self._ask.partitions(topic=topic.full)
        grants = await self._grants(topic.namespace)
        own = cast("dict[str, Words]", grants.get(OF_TOPICS, {})).get(topic.full, {})
        wide = grants.get(OF_NAMESPACE, {})
        shown = {role: _ordered([*wide.get(role, []), *own.get(role, [])]) for role in {**wide, **own}}
        return json_answer(shown)

    async def grant_topic(self, request: web.Request) -> web.Response:
        """Set which actions a role may take at a topic. Body: a list of actions. Brokers do not check it yet."""
        role, actions = request.match_info["role"], await _actions(request)
        return await self._change_topic(request, lambda roles: roles.update({role: actions}))

    async def revoke_topic(self, request: web.Request) -> web.Response:
        """Let a role take no action at a topic, except those that its namespace allows."""
        role = request.match_info["role"]
        return await self._change_topic(request, lambda roles: roles.pop(role, None))

    async def _change_topic(self, request: web.Request, change: Callable[[Words], object]) -> web.Response:
        topic = topic_of(request)
        await self._ask.partitions(topic=topic.full)

        def change_one(topics: dict[str, Words]) -> None:
            roles = topics.setdefault(topic.full, {})
            change(roles)
            if not roles:
                del topics[topic.full]

        return await self._change(topic.namespace, OF_TOPICS, cast("Callable[[Words], object]", change_one))

    # -- inside --------------------------------------------------------------------------------------------------

    async def _grants(self, namespace: str) -> dict[str, Words]:
        """All grants of a namespace. Raises TopicNotFound for a missing one."""
        found = (await self._ask.namespace(namespace=namespace)).policies or {}
        return cast("dict[str, Words]", dict(cast("dict[str, object]", found.get(POLICY, {}))))

    async def _change(self, namespace: str, part: str, change: Callable[[Words], object]) -> web.Response:
        async with self._changes:
            grants = await self._grants(namespace)
            changed = dict(grants.get(part, {}))
            change(changed)
            grants[part] = changed
            kept = {name: words for name, words in grants.items() if words}
            await self._ask.set_policy(namespace=namespace, policy=POLICY, value=kept or None)
        return no_content()


async def _actions(request: web.Request) -> list[str]:
    """The actions in a body. Raises HTTP 400 for anything else."""
    body = await json_body(request)
    if not is_list(body) or not ACTIONS.fits(body):
        raise web.HTTPBadRequest(text=f"the body must be {ACTIONS.text}")
    return _ordered(cast("list[str]", body))


def _ordered(actions: list[str]) -> list[str]:
    """Each action once, in the order of their declaration."""
    return cast("list[str]", ACTIONS.write(ACTIONS.read(actions)))
