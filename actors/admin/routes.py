"""How an admin path is declared: method, path, handler, and what goes in and comes out.

A declaration is all that there is to a path. The HTTP server, the reference and the OpenAPI description are made from
it. What the path does is the handler's docstring. A parameter in a path has its type and its text by its name.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from ..security.authorization import Need

ValueSchema = Mapping[str, object]
"""A JSON schema, as OpenAPI 3.1 has them."""
RouteHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TEXT: ValueSchema = {"type": "string"}
WHOLE: ValueSchema = {"type": "integer"}
NATURAL: ValueSchema = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}
FLAG: ValueSchema = {"type": "boolean"}
ANYTHING: ValueSchema = {}
TEXTS: ValueSchema = {"type": "array", "items": TEXT}

NAMESPACE_ROUTE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPICS_ROUTE = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
TOPIC_ROUTE = TOPICS_ROUTE + "/{topic}"
SUBSCRIPTION_ROUTE = TOPIC_ROUTE + "/subscription/{subscription}"

JSON = "application/json"
PLAIN = "text/plain"
BYTES = "application/octet-stream"


@dataclass(frozen=True)
class Parameter:
    """A parameter in a query or a path."""

    name: str
    schema: ValueSchema
    doc: str


PATH_PARAMETERS = {
    one.name: one
    for one in (
        Parameter("domain", TEXT, "The domain of the topic."),
        Parameter("tenant", TEXT, "The name of the tenant."),
        Parameter("namespace", TEXT, "The name of the namespace, without its tenant."),
        Parameter("topic", TEXT, "The local name of the topic, form-encoded: a space is a plus."),
        Parameter("subscription", TEXT, "The name of the subscription, form-encoded and then path-encoded."),
        Parameter("subscription_name", TEXT, "The name of the subscription, path-encoded."),
        Parameter("role", TEXT, "The name of a role."),
        Parameter("setting", TEXT, "The name of a setting."),
        Parameter("property", TEXT, "The name of a property."),
        Parameter("text", TEXT, "The text of a property."),
        Parameter("value", TEXT, "The value of a setting."),
        Parameter("bookie", TEXT, "The id of a bookie."),
        Parameter("member", TEXT, "The id of a broker or bookie, such as `broker-2`."),
        Parameter("cluster", TEXT, "The name of the cluster."),
        Parameter("messages", NATURAL, "How many messages."),
        Parameter("position", NATURAL, "The number of a message, from 1."),
        Parameter("seconds", NATURAL, "An age in seconds."),
        Parameter("timestamp", NATURAL, "A time in milliseconds since the epoch."),
        Parameter("ledger", NATURAL, "The id of a ledger."),
        Parameter("entry", NATURAL, "The id of an entry."),
        Parameter("version", WHOLE, "The number of a version."),
    )
}
"""Parameters in paths by name."""

FORCE = Parameter("force", FLAG, "Whether clients are disconnected first.")
APPLIED = Parameter("applied", FLAG, "Whether what holds is asked for, and not what this level says.")


@dataclass(frozen=True)
class Route:
    """One method of one path.

    `need` is what a caller needs for it; a path cannot be declared without one.

    `body` is the schema of the request's body, None for none. `answer` is that of the answer's, None for an answer
    without a body (204). With `may_be_empty` an answer may have no body all the same, and the same status; with
    `no_content` it may be 204.
    """

    need: Need
    method: str
    path: str
    handler: RouteHandler
    body: ValueSchema | None = None
    optional_body: bool = False
    query: tuple[Parameter, ...] = ()
    answer: ValueSchema | None = None
    status: int = 200
    may_be_empty: bool = False
    no_content: bool = False
    content_type: str = JSON


def get(
    need: Need,
    path: str,
    handler: RouteHandler,
    answer: ValueSchema,
    *,
    query: tuple[Parameter, ...] = (),
    may_be_empty: bool = False,
    no_content: bool = False,
    content_type: str = JSON,
) -> Route:
    """A path that is read."""
    return Route(
        need,
        "GET",
        path,
        handler,
        query=query,
        answer=answer,
        may_be_empty=may_be_empty,
        no_content=no_content,
        content_type=content_type,
    )


def put(
    need: Need,
    path: str,
    handler: RouteHandler,
    body: ValueSchema | None = None,
    *,
    optional_body: bool = False,
    query: tuple[Parameter, ...] = (),
    answer: ValueSchema | None = None,
) -> Route:
    """A path that something is put to."""
    return Route(need, "PUT", path, handler, body, optional_body, query, answer)


def post(
    need: Need,
    path: str,
    handler: RouteHandler,
    body: ValueSchema | None = None,
    *,
    optional_body: bool = False,
    query: tuple[Parameter, ...] = (),
    answer: ValueSchema | None = None,
    status: int = 200,
) -> Route:
    """A path that changes something, or asks a question that has a body."""
    return Route(need, "POST", path, handler, body, optional_body, query, answer, status)


def delete(
    need: Need,
    path: str,
    handler: RouteHandler,
    *,
    query: tuple[Parameter, ...] = (),
    answer: ValueSchema | None = None,
    may_be_empty: bool = False,
    content_type: str = JSON,
) -> Route:
    """A path that is removed."""
    return Route(
        need, "DELETE", path, handler, query=query, answer=answer, may_be_empty=may_be_empty, content_type=content_type
    )
