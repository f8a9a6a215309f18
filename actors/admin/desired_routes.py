"""The admin's paths about which brokers and bookies should run, and which of them are being drained."""

from aiohttp import web

from ...protocol.cluster_status import DesiredView
from ...protocol.lenient_values import as_whole
from ...protocol.plain_values import is_text_map
from .requests import Owners, json_answer, json_body
from .routes import NATURAL, TEXTS, Route, ValueSchema, delete, get, post, put
from .shapes import map_of, object_of

DESIRED = "/admin/v2/desired-state"
DESIRED_SHAPE = object_of(
    brokers=TEXTS,
    bookies=TEXTS,
    draining=map_of(object_of(left={"type": "integer"}, most={"type": "integer"})),
    leaving=TEXTS,
    left_over=map_of({"type": "string"}),
)
NUMBERS: ValueSchema = {"type": "object", "properties": {"brokers": NATURAL, "bookies": NATURAL}}


class DesiredRoutes:
    """See the module."""

    def __init__(self, owners: Owners) -> None:
        self._ask = owners.coordinator.ask

    def routes(self) -> list[Route]:
        draining = DESIRED + "/draining/{member}"
        return [
            get(DESIRED, self.desired, DESIRED_SHAPE),
            post(DESIRED, self.scale, NUMBERS, answer=DESIRED_SHAPE),
            put(draining, self.drain, answer=DESIRED_SHAPE),
            delete(draining, self.undrain, answer=DESIRED_SHAPE),
        ]

    async def desired(self, request: web.Request) -> web.Response:
        """Return which brokers and bookies should run, and what those that drain still have."""
        return _shown(await self._ask.desired_state())

    async def scale(self, request: web.Request) -> web.Response:
        """Change how many brokers and bookies run. With fewer, those with the highest numbers drain."""
        body = await json_body(request)
        if not is_text_map(body) or not body or set(body) - {"brokers", "bookies"}:
            raise web.HTTPBadRequest(text="the body must be an object with brokers, bookies, or both")
        return _shown(await self._ask.scale(brokers=_number(body, "brokers"), bookies=_number(body, "bookies")))

    async def drain(self, request: web.Request) -> web.Response:
        """Have a broker or bookie give up what it has, and end."""
        return _shown(await self._ask.drain(member=request.match_info["member"]))

    async def undrain(self, request: web.Request) -> web.Response:
        """Have a broker or bookie that drains stay after all."""
        return _shown(await self._ask.undrain(member=request.match_info["member"]))


def _shown(view: DesiredView) -> web.Response:
    return json_answer(dict(view))


def _number(body: dict[str, object], name: str) -> int | None:
    value = as_whole(body.get(name))
    if value is not None and type(value) is not int:
        raise web.HTTPBadRequest(text=f"{name} must be a whole number")
    return value
