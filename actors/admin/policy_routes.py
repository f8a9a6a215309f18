"""The admin's paths of the policies of namespaces and topics, made from the table of policies, and policies
in the body of a request.

Statuses and reasons are Pulsar's 4.2.4, with these exceptions. A number with a fraction for a whole one is refused
(400), and so is null. Pulsar takes 1.5 for 1, and null for 0 or false. A number of over 32 bits is refused with 400,
where Pulsar answers 500.
"""

import json
from collections.abc import Iterator, Mapping
from typing import cast

from aiohttp import web

from ...protocol.errors import InvalidConfiguration
from ...protocol.plain_values import is_text_map
from ...protocol.properties import Properties
from ...protocol.topics import TopicName
from ...runtime.settings.declarations import Settings
from ..policies.effective import POLICIES, EffectivePolicies
from ..policies.kinds import MapOf, WholeNumber
from ..policies.policy import Policy, PolicyPath, PolicyValues
from .requests import Owners, json_answer, json_body, namespace_of, no_content, texts_of, topic_of, whole_number
from .routes import APPLIED, NAMESPACE_ROUTE, TOPIC_ROUTE, WHOLE, Parameter, Route, RouteHandler, delete, get, post, put

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
            path,
            self._topic_getter(name, policy, level),
            policy.kind.schema,
            query=(APPLIED,) if level.applied and not level.no_content else (),
            may_be_empty=level.empty is None and not level.no_content,
            no_content=level.no_content,
        )
        if level.settable:
            yield _setting_route(path, self._topic_setter(name, policy, level), policy, level)
        if level.removable:
            yield delete(path, self._topic_remover(name, policy))

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
        yield get(path, self._getter(name, level, policy.doc), policy.kind.schema, may_be_empty=level.empty is None)
        if level.settable:
            yield _setting_route(path, self._setter(name, policy, level), policy, level)
        if level.removable:
            yield delete(path, self._remover(name, policy))

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


def _setting_route(path: str, handler: RouteHandler, policy: Policy[object], level: PolicyPath) -> Route:
    """The route that sets a policy: by its body, or by a parameter of the query."""
    declare = put if level.put else post
    if level.parameter:
        return declare(path, handler, query=(Parameter(level.parameter, WHOLE, f"The value: {policy.kind.text}."),))
    return declare(path, handler, policy.kind.schema, optional_body=level.empty_removes)


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
