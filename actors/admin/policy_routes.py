"""The admin's paths of the policies of namespaces and topics, made from the table of policies, and policies
in the body of a request.

Statuses and reasons are Pulsar's 4.2.4, with these exceptions. A number with a fraction for a whole one is refused
(400), and so is null. Pulsar takes 1.5 for 1, and null for 0 or false. A number of over 32 bits is refused with 400,
where Pulsar answers 500.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from aiohttp import web

from ...protocol.errors import InvalidConfiguration, NoSuchKey
from ...protocol.lenient_values import as_whole
from ...protocol.plain_values import is_list, is_text_map
from ...protocol.properties import Properties
from ...protocol.topics import TopicName
from ...runtime.settings.declarations import Settings
from ..policies.backlog_quota import BacklogQuota, QuotaPolicy, QuotaType
from ..policies.effective import POLICIES, EffectivePolicies
from ..policies.kinds import Choice, MapOf, RecordOf, TextSet, WholeNumber, WordSet
from ..policies.permissions import AuthAction
from ..policies.policy import Policy, PolicyPath, PolicyValues
from ..security.authorization import NAMESPACE_ADMIN, TOPIC_ADMIN, Need
from .requests import Owners, json_answer, json_body, namespace_of, no_content, texts_of, topic_of, whole_number
from .routes import (
    APPLIED,
    NAMESPACE_ROUTE,
    TEXTS,
    TOPIC_ROUTE,
    WHOLE,
    Parameter,
    Route,
    RouteHandler,
    delete,
    get,
    post,
    put,
)
from .shapes import map_of

UNSUPPORTED_DEFAULTS: Mapping[str, object] = {
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "deleted": False,
    "migrated": False,
}
"""Policies that there are not here, and the values by which Pulsar's tools say that they are not set. They send all
policies of a namespace that they create. An empty value says so, too."""

SHOWN_ALWAYS: Mapping[str, object] = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": [],
    "allowed_clusters": [],
    "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema": True,
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
"""What Pulsar shows of a namespace without policies. There are no bundles here, which is shown as one."""

WITHOUT_MEANING = ("bundles",)
"""What Pulsar's tools always send, and has no meaning here: topics are placed one by one."""

_NAMES = {policy.key: name for name, policy in POLICIES.items() if policy.namespace is not None}
"""Policies by their name in Pulsar's JSON."""

PROPERTIES = "properties"
AUTH_POLICIES = "auth_policies"
CLUSTERS = ("replication_clusters", "allowed_clusters")


class PolicyRoutes:
    """See the module."""

    def __init__(self, settings: Settings, owners: Owners) -> None:
        self._settings = settings
        self._ask = owners.coordinator.ask

    def routes(self) -> list[Route]:
        wide = [
            route
            for name, policy in POLICIES.items()
            if policy.namespace is not None and policy.namespace.routed
            for route in self._routes_of(name, policy, policy.namespace)
        ]
        narrow = [
            route
            for name, policy in POLICIES.items()
            if policy.topic is not None
            for route in self._routes_of_topic(name, policy, policy.topic)
        ]
        return [*wide, *narrow]

    # -- topics --------------------------------------------------------------------------------------------------

    def _routes_of_topic(self, name: str, policy: Policy[object], level: PolicyPath) -> Iterator[Route]:
        path = f"{TOPIC_ROUTE}/{level.path}"
        yield get(
            TOPIC_ADMIN,
            path,
            self._topic_getter(name, policy, level),
            policy.kind.schema,
            query=(APPLIED,) if level.applied and not level.no_content else (),
            may_be_empty=level.empty is None and not level.no_content,
            no_content=level.no_content,
        )
        if level.settable:
            yield _setting_route(TOPIC_ADMIN, path, self._topic_setter(name, policy, level), policy, level)
        if level.removable:
            yield delete(TOPIC_ADMIN, path, self._topic_remover(name, policy))

    def _topic_getter(self, name: str, policy: Policy[object], level: PolicyPath) -> RouteHandler:
        async def show(request: web.Request) -> web.Response:
            topic = topic_with_policies(request, self._settings)
            found = (await self._ask.topic_policies(topic=topic.full)).policies or {}
            if request.query.get("applied", "").lower() == "true" and level.applied and not level.no_content:
                wide = (await self._ask.namespace(namespace=topic.namespace)).policies or {}
                holds = EffectivePolicies.resolve(self._settings, wide, found)
                return json_answer(policy.kind.write(getattr(holds, name)))
            value = found.get(name, level.empty)
            if value is None:
                return no_content() if level.no_content else web.Response()
            return json_answer(value)

        further = "" if level.no_content or not level.applied else " With `applied=true`, what holds for it."
        show.__doc__ = f"Return {policy.doc}, as the topic says.{further}"
        return show

    def _topic_setter(self, name: str, policy: Policy[object], level: PolicyPath) -> RouteHandler:
        async def set_policy(request: web.Request) -> web.Response:
            topic = topic_with_policies(request, self._settings)
            value: object = _parameter(request, level) if level.parameter else await json_body(request)
            value = policy.kind.meant(value)
            if value is not None or not level.empty_removes:
                _check(policy, value, level)
            await self._ask.set_topic_policy(topic=topic.full, policy=name, value=value)
            return no_content()

        where = f"The value stands in the query, as `{level.parameter}`" if level.parameter else "Body"
        set_policy.__doc__ = f"Set {policy.doc}, for one topic. {where}: {policy.kind.text}."
        return set_policy

    def _topic_remover(self, name: str, policy: Policy[object]) -> RouteHandler:
        async def remove(request: web.Request) -> web.Response:
            await self._ask.set_topic_policy(
                topic=topic_with_policies(request, self._settings).full, policy=name, value=None
            )
            return no_content()

        remove.__doc__ = f"Let the namespace say {policy.doc}."
        return remove

    # -- namespaces ----------------------------------------------------------------------------------------------

    def _routes_of(self, name: str, policy: Policy[object], level: PolicyPath) -> Iterator[Route]:
        path = f"{NAMESPACE_ROUTE}/{level.path}"
        yield get(
            NAMESPACE_ADMIN,
            path,
            self._getter(name, level, policy.doc),
            policy.kind.schema,
            may_be_empty=level.empty is None,
        )
        if level.settable:
            yield _setting_route(NAMESPACE_ADMIN, path, self._setter(name, policy, level), policy, level)
        if level.removable:
            yield delete(NAMESPACE_ADMIN, path, self._remover(name, policy))

    def _getter(self, name: str, level: PolicyPath, doc: str) -> RouteHandler:
        async def show(request: web.Request) -> web.Response:
            found = (await self._ask.namespace(namespace=namespace_of(request))).policies or {}
            value = found.get(name, level.empty)
            return web.Response() if value is None else json_answer(value)

        otherwise = " The body is empty if the namespace does not say." if level.empty is None else ""
        show.__doc__ = f"Return {doc}, as the namespace says.{otherwise}"
        return show

    def _setter(self, name: str, policy: Policy[object], level: PolicyPath) -> RouteHandler:
        async def set_policy(request: web.Request) -> web.Response:
            value = policy.kind.meant(await json_body(request))
            if value is not None or not level.empty_removes:
                _check(policy, value, level)
            await self._ask.set_policy(namespace=namespace_of(request), policy=name, value=value)
            return no_content()

        set_policy.__doc__ = f"Set {policy.doc}. Body: {policy.kind.text}."
        return set_policy

    def _remover(self, name: str, policy: Policy[object]) -> RouteHandler:
        async def remove(request: web.Request) -> web.Response:
            await self._ask.set_policy(namespace=namespace_of(request), policy=name, value=None)
            return no_content()

        remove.__doc__ = f"Let the broker's setting say {policy.doc}."
        return remove


def _setting_route(need: Need, path: str, handler: RouteHandler, policy: Policy[object], level: PolicyPath) -> Route:
    """The route that sets a policy: by its body, or by a parameter of the query."""
    declare = put if level.put else post
    if level.parameter:
        return declare(
            need, path, handler, query=(Parameter(level.parameter, WHOLE, f"The value: {policy.kind.text}."),)
        )
    return declare(need, path, handler, policy.kind.schema, optional_body=level.empty_removes)


def topic_with_policies(request: web.Request, settings: Settings) -> TopicName:
    """Raises HTTP 405, as Pulsar does, where topics have no policies of their own, and 412 for a partition."""
    topic = topic_of(request)
    if not settings.topic_level_policies_enabled:
        raise web.HTTPMethodNotAllowed(
            request.method, [], text="topics have no policies of their own: set topicLevelPoliciesEnabled=true"
        )
    if topic.partition >= 0:
        raise web.HTTPPreconditionFailed(text="Not allowed to set/get topic policy for a partition")
    return topic


def shown(policies: PolicyValues, properties: Properties, cluster: str) -> dict[str, object]:
    """The policies of a namespace in the body of an answer: as in Pulsar, those that are set, and some always."""
    found: dict[str, object] = {**SHOWN_ALWAYS, "replication_clusters": [cluster], "properties": properties}
    for name in _NAMES.values():
        policy = POLICIES[name]
        if name in policies and name == AUTH_POLICIES:
            found[name] = {
                **cast("Mapping[str, object]", SHOWN_ALWAYS[name]),
                **cast("Mapping[str, object]", policies[name]),
            }
        elif name in policies:
            found[policy.key] = {cluster: policies[name]} if policy.by_cluster else policies[name]
    found["clusterDispatchRate"] = found["topicDispatchRate"]
    return found


def policies_in(body: object, cluster: str) -> dict[str, object]:
    """The policies that the body of a request sets for a new namespace of this cluster.

    As in Pulsar, a negative bound means that the bound is not set. Raises HTTP 400 for a value of a wrong type, and
    InvalidConfiguration for a policy that there is not here, unless it is not set.
    """
    if body is None:
        return {}
    if not is_text_map(body):
        raise web.HTTPBadRequest(text="the body is an object with the namespace's policies")
    found: dict[str, object] = {}
    for key, value in body.items():
        name = _NAMES.get(key)
        if key == PROPERTIES:
            continue  # they are no policy: `properties_in` has them
        if name is None:
            if key != "clusterDispatchRate" or value != body.get("topicDispatchRate"):
                _check_unset(key, value, cluster)
            continue  # the old name of a policy that is there, too, says nothing more
        policy = POLICIES[name]
        if policy.by_cluster:
            value = _of_cluster(key, value, cluster)
        value = policy.kind.meant(value)
        if (isinstance(policy.kind, MapOf) and value == {}) or (
            name == AUTH_POLICIES and is_text_map(value) and _is_empty(value)
        ):
            continue  # as Pulsar's tools say that nothing is set
        if value is not None and not (isinstance(policy.kind, WholeNumber) and isinstance(value, int) and value < 0):
            _check(policy, value, policy.namespace or PolicyPath(key))
            found[name] = value
    return found


def properties_in(body: object) -> Properties | None:
    """The properties that the body of a request sets for a new namespace. Raises HTTP 400 for other than texts."""
    found = body.get(PROPERTIES) if is_text_map(body) else None
    return texts_of(found) if found is not None else None


def _of_cluster(key: str, value: object, cluster: str) -> object:
    """What a map by cluster says of this one."""
    if value is None:
        return None
    if not is_text_map(value) or any(name != cluster for name in value):
        raise web.HTTPBadRequest(text=f"{key} is an object that names this cluster, and no other: {cluster}")
    return value.get(cluster)


def _check(policy: Policy[object], value: object, level: PolicyPath) -> None:
    """Raise HTTP 400 for a value of a wrong type, and for a wrong value where Pulsar says so."""
    if value is None:
        raise web.HTTPBadRequest(text=f"the body is empty: send {policy.kind.text}")
    if not policy.kind.fits(value):
        raise web.HTTPBadRequest(text=f"{level.word} is {policy.kind.text}, not {value!r:.100}")
    if level.bad_request:
        try:
            policy.check(value, level)
        except InvalidConfiguration as error:
            raise web.HTTPBadRequest(text=str(error)) from None


def _parameter(request: web.Request, level: PolicyPath) -> int | None:
    """The value in the query, None without one. Raises HTTP 400 for anything but a whole number."""
    given = request.query.get(level.parameter)
    if given is None:
        return None
    number = whole_number(given.removeprefix("-"), level.parameter)
    return -number if given.startswith("-") else number


def _check_unset(name: str, value: object, cluster: str) -> None:
    is_unset = (
        name in WITHOUT_MEANING
        or _is_empty(value)
        or (name in CLUSTERS and value == [cluster])
        or (name in UNSUPPORTED_DEFAULTS and json.dumps(value) == json.dumps(UNSUPPORTED_DEFAULTS[name]))
    )
    if not is_unset:
        raise InvalidConfiguration(f"the policy {name[:100]} is not supported: leave it out")


def _is_empty(value: object) -> bool:
    """Whether a value says nothing: null, an empty text or list, or an object that holds only such."""
    if is_text_map(value):
        return all(_is_empty(item) for item in value.values())
    return value is None or value in ("", [])


QUOTA_POLICY = "backlog_quota_map"
Quotas = Mapping[str, object]
QUOTA = RecordOf(BacklogQuota).schema
TYPE = Parameter("backlogQuotaType", Choice(QuotaType).schema, "What is bounded.")


class QuotaRoutes:
    """The admin's paths that set and remove backlog quotas, one type at a time. `GET …/backlogQuotaMap` shows them all.

    Statuses are Pulsar's 4.2.4. It answers 500 for a namespace's quota without a body; here that is 400.
    """

    def __init__(self, settings: Settings, owners: Owners) -> None:
        self._settings = settings
        self._ask = owners.coordinator.ask

    def routes(self) -> list[Route]:
        namespace = NAMESPACE_ROUTE + "/backlogQuota"
        topic = TOPIC_ROUTE + "/backlogQuota"
        return [
            post(NAMESPACE_ADMIN, namespace, self.set_of_namespace, QUOTA, query=(TYPE,)),
            delete(NAMESPACE_ADMIN, namespace, self.remove_of_namespace, query=(TYPE,)),
            post(TOPIC_ADMIN, topic, self.set_of_topic, QUOTA, optional_body=True, query=(TYPE,)),
            delete(TOPIC_ADMIN, topic, self.remove_of_topic, query=(TYPE,)),
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
        await self._ask.set_policy(namespace=namespace, policy=QUOTA_POLICY, value=_changed(found, kind, quota))

    async def _set_topic(self, topic: TopicName, kind: QuotaType, quota: Quotas | None) -> None:
        found = (await self._ask.topic_policies(topic=topic.full)).policies or {}
        await self._ask.set_topic_policy(topic=topic.full, policy=QUOTA_POLICY, value=_changed(found, kind, quota))


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
    found = dict(cast("Mapping[str, object]", policies.get(QUOTA_POLICY, {})))
    found.pop(kind.value, None)
    if quota is not None:
        found[kind.value] = quota
    return found or None


PERMISSIONS_POLICY = "auth_policies"
OF_NAMESPACE, OF_TOPICS, OF_SUBSCRIPTIONS = "namespace_auth", "destination_auth", "subscription_auth_roles"

Words = dict[str, list[str]]
"""Actions by role, or roles by subscription."""
ACTIONS = WordSet(AuthAction)


class PermissionRoutes:
    """The admin's paths of permissions: which roles may use a namespace, its topics, and its subscriptions.

    They are stored as the policy `auth_policies` of the namespace, and count with `authorizationEnabled`. Statuses are
    Pulsar's 4.2.4, with three exceptions. A word that is no action is refused
    (400), where Pulsar stores null. So is a grant to a topic without a body. A subscription without grants is 404, not
    500.
    """

    def __init__(self, owners: Owners) -> None:
        self._ask = owners.coordinator.ask
        self._changes = asyncio.Lock()
        """A change reads all grants of a namespace and writes them: two at once would lose one."""

    def routes(self) -> list[Route]:
        namespace, topic = NAMESPACE_ROUTE + "/permissions", TOPIC_ROUTE + "/permissions"
        return [
            get(NAMESPACE_ADMIN, namespace, self.of_namespace, map_of(TEXTS)),
            post(NAMESPACE_ADMIN, namespace + "/{role}", self.grant_namespace, TEXTS),
            delete(NAMESPACE_ADMIN, namespace + "/{role}", self.revoke_namespace),
            get(NAMESPACE_ADMIN, namespace + "/subscription", self.of_subscriptions, map_of(TEXTS)),
            post(NAMESPACE_ADMIN, namespace + "/subscription/{subscription_name}", self.grant_subscription, TEXTS),
            delete(NAMESPACE_ADMIN, namespace + "/{subscription_name}/{role}", self.revoke_subscription),
            get(TOPIC_ADMIN, topic, self.of_topic, map_of(TEXTS)),
            post(TOPIC_ADMIN, topic + "/{role}", self.grant_topic, TEXTS),
            delete(TOPIC_ADMIN, topic + "/{role}", self.revoke_topic),
        ]

    # -- namespaces and subscriptions ----------------------------------------------------------------------------

    async def of_namespace(self, request: web.Request) -> web.Response:
        """Return which actions each role may take in a namespace."""
        return json_answer((await self._grants(namespace_of(request))).get(OF_NAMESPACE, {}))

    async def grant_namespace(self, request: web.Request) -> web.Response:
        """Set which actions a role may take in a namespace. Body: a list of actions."""
        role, actions = request.match_info["role"], await _actions(request)
        return await self._change(namespace_of(request), OF_NAMESPACE, lambda roles: roles.update({role: actions}))

    async def revoke_namespace(self, request: web.Request) -> web.Response:
        """Let a role take no action in a namespace."""
        role = request.match_info["role"]
        return await self._change(namespace_of(request), OF_NAMESPACE, lambda roles: roles.pop(role, None))

    async def of_subscriptions(self, request: web.Request) -> web.Response:
        """Return which roles may use each subscription of a namespace."""
        return json_answer((await self._grants(namespace_of(request))).get(OF_SUBSCRIPTIONS, {}))

    async def grant_subscription(self, request: web.Request) -> web.Response:
        """Set which roles may use a subscription. Body: a list of roles."""
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
        """Return which actions each role may take at a topic, also by its namespace."""
        topic = topic_of(request)
        await self._ask.partitions(topic=topic.full)
        grants = await self._grants(topic.namespace)
        own = cast("dict[str, Words]", grants.get(OF_TOPICS, {})).get(topic.full, {})
        wide = grants.get(OF_NAMESPACE, {})
        shown = {role: _ordered([*wide.get(role, []), *own.get(role, [])]) for role in {**wide, **own}}
        return json_answer(shown)

    async def grant_topic(self, request: web.Request) -> web.Response:
        """Set which actions a role may take at a topic. Body: a list of actions."""
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
        return cast("dict[str, Words]", dict(cast("dict[str, object]", found.get(PERMISSIONS_POLICY, {}))))

    async def _change(self, namespace: str, part: str, change: Callable[[Words], object]) -> web.Response:
        async with self._changes:
            grants = await self._grants(namespace)
            changed = dict(grants.get(part, {}))
            change(changed)
            grants[part] = changed
            kept = {name: words for name, words in grants.items() if words}
            await self._ask.set_policy(namespace=namespace, policy=PERMISSIONS_POLICY, value=kept or None)
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
