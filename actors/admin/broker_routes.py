"""The admin's paths of brokers' settings, of their version and leader, and of the racks of bookies.

Settings hold until a restart: none is dynamic, and to set one is refused with 412, as for a setting of Pulsar's that is
not dynamic. What changes while brokers run is a policy. Brokers have no leader, since the coordinator decides; a tool
that asks for it is sent to this admin. The rack of a bookie is a label of its Ray node; it cannot be set here.
"""

import dataclasses

from aiohttp import web

from ...protocol.errors import NoSuchKey, NotAllowedError
from ...protocol.names import VERSION
from ...runtime.settings.declarations import Settings
from .requests import Owners, json_answer
from .routes import PLAIN, TEXT, TEXTS, Route, delete, get, post
from .shapes import map_of, object_of


class BrokerRoutes:
    """See the module."""

    def __init__(self, settings: Settings, owners: Owners) -> None:
        self._values = {
            str(field.metadata["name"]): _text(getattr(settings, field.name)) for field in dataclasses.fields(settings)
        }
        self._ask = owners.coordinator.ask

    def routes(self) -> list[Route]:
        brokers = "/admin/v2/brokers"
        bookie = "/admin/v2/bookies/racks-info/{bookie}"
        return [
            get(brokers + "/leaderBroker", self.leader, object_of(brokerId=TEXT, serviceUrl=TEXT)),
            get(brokers + "/version", self.version, TEXT, content_type=PLAIN),
            get(brokers + "/configuration", self.dynamic_names, TEXTS),
            get(brokers + "/configuration/values", self.dynamic_values, map_of(TEXT)),
            get(brokers + "/configuration/runtime", self.values, map_of(TEXT)),
            post(brokers + "/configuration/{setting}/{value}", self.change),
            delete(brokers + "/configuration/{setting}", self.change),
            get("/admin/v2/bookies/racks-info", self.racks, map_of(map_of({"type": "object"}))),
            get(bookie, self.rack, {"type": "object"}),
        ]

    async def leader(self, request: web.Request) -> web.Response:
        """Return where to ask what Pulsar's leading broker knows: this admin."""
        return json_answer({"brokerId": request.host, "serviceUrl": f"{request.scheme}://{request.host}"})

    async def version(self, request: web.Request) -> web.Response:
        """Return the version of the cluster's software."""
        return web.Response(text=VERSION)

    async def dynamic_names(self, request: web.Request) -> web.Response:
        """List the settings that change while brokers run: none."""
        return json_answer([])

    async def dynamic_values(self, request: web.Request) -> web.Response:
        """Return the settings that were changed while brokers run: none."""
        return json_answer({})

    async def values(self, request: web.Request) -> web.Response:
        """Return all settings of the cluster by name, as texts."""
        return json_answer(self._values)

    async def change(self, request: web.Request) -> web.Response:
        """Refuse to change a setting while brokers run (412): pass it on the next start."""
        name = request.match_info["setting"]
        raise NotAllowedError(f"the setting {name[:100]} does not change while brokers run: pass it on the next start")

    async def racks(self, request: web.Request) -> web.Response:
        """Return the live bookies that are in a rack or zone, as a label of their Ray node says."""
        bookies = [bookie for bookie in await self._ask.bookies() if bookie.zone]
        group = {bookie.id: _rack(bookie.zone, bookie.host, bookie.port) for bookie in bookies}
        return json_answer({"default": group} if group else {})

    async def rack(self, request: web.Request) -> web.Response:
        """Return the rack of a live bookie; 404 for one whose Ray node has no label that says so."""
        name = request.match_info["bookie"]
        for bookie in await self._ask.bookies():
            if bookie.id == name and bookie.zone:
                return json_answer(_rack(bookie.zone, bookie.host, bookie.port))
        raise NoSuchKey(f"the bookie {name[:100]} has no rack: no label of its Ray node says so")


def _rack(zone: str, host: str, port: int) -> dict[str, str]:
    return {"rack": f"/{zone.strip('/')}", "hostname": f"{host}:{port}"}


def _text(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
