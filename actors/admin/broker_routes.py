"""The admin's paths of brokers' settings, loads, version and leader, and of the racks of bookies.

Settings hold until a restart: none is dynamic, and to set one is refused with 412, as for a setting of Pulsar's that is
not dynamic. What changes while brokers run is a policy. Brokers have no leader, since the coordinator decides; a tool
that asks for it is sent to this admin. The rack of a bookie is a label of its Ray node; it cannot be set here.

Load reports have the names of Pulsar's. What brokers do not measure is left out: memory, the bandwidth of the machine,
and bundles, which there are none of. `lastStats` has the heaviest topics by name. `load` is what the coordinator
balances, in entries per second.
"""

import dataclasses

from aiohttp import web

from ...protocol.errors import NoSuchKey, NotAllowedError
from ...protocol.load_figures import BrokerLoad, LoadReport, Rates, UnitRates
from ...protocol.names import VERSION
from ...runtime.settings.declarations import Settings
from ..security.authorization import KNOWN, SUPER_USER
from .requests import Owners, json_answer
from .routes import PLAIN, TEXT, TEXTS, Route, delete, get, post
from .shapes import NAME, map_of, object_of, shape_of


class BrokerRoutes:
    """See the module."""

    def __init__(self, settings: Settings, owners: Owners) -> None:
        self._values = {
            str(field.metadata["name"]): _text(getattr(settings, field.name)) for field in dataclasses.fields(settings)
        }
        self._ask = owners.coordinator.ask
        self._owners = owners

    def routes(self) -> list[Route]:
        brokers = "/admin/v2/brokers"
        bookie = "/admin/v2/bookies/racks-info/{bookie}"
        return [
            get(SUPER_USER, brokers + "/leaderBroker", self.leader, object_of(brokerId=TEXT, serviceUrl=TEXT)),
            get(KNOWN, brokers + "/version", self.version, TEXT, content_type=PLAIN),
            get(SUPER_USER, brokers + "/configuration", self.dynamic_names, TEXTS),
            get(SUPER_USER, brokers + "/configuration/values", self.dynamic_values, map_of(TEXT)),
            get(SUPER_USER, brokers + "/configuration/runtime", self.values, map_of(TEXT)),
            post(SUPER_USER, brokers + "/configuration/{setting}/{value}", self.change),
            delete(SUPER_USER, brokers + "/configuration/{setting}", self.change),
            get(SUPER_USER, "/admin/v2/broker-stats/load-report", self.loads, map_of(LOAD_SHAPE)),
            get(SUPER_USER, "/admin/v2/bookies/racks-info", self.racks, map_of(map_of({"type": "object"}))),
            get(SUPER_USER, bookie, self.rack, {"type": "object"}),
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

    async def loads(self, request: web.Request) -> web.Response:
        """Return the load reports of all brokers by `host:port`, or with `brokerId=host:port` that of one broker.

        Pulsar's path answers for the broker that is asked. This admin answers for all of them.
        """
        found = await self._ask.cluster_load()
        now_ms = self._owners.now_ms()
        urls = {broker.id: broker.url for broker in self._owners.coordinator.brokers.values()}
        shown = {
            urls[broker].partition("://")[2]: _load(urls[broker], now_ms, load)
            for broker, load in found.brokers.items()
            if broker in urls
        }
        wanted = request.query.get("brokerId")
        if wanted is None:
            return json_answer(shown)
        if wanted not in shown:
            raise NoSuchKey(f"no live broker {wanted[:200]} has reported its load: GET /admin/v2/brokers lists brokers")
        return json_answer(shown[wanted])

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


def _load(url: str, now_ms: int, load: BrokerLoad) -> dict[str, object]:
    report = load.report
    return {
        "pulsarServiceUrl": url,
        "load": report.total.load,
        "averageLoad": load.load,
        "cpu": {"usage": report.cpu * 100, "limit": 100.0},
        **_rates(report.total),
        "numTopics": report.topics,
        "lastUpdate": now_ms - round(load.age_s * 1000),
        "lastStats": {one.unit: {"load": one.rates.load, **_rates(one.rates)} for one in report.heaviest},
    }


def _rates(rates: Rates) -> dict[str, float]:
    return {
        "msgRateIn": rates.messages_in,
        "msgThroughputIn": rates.bytes_in,
        "msgRateOut": rates.messages_out,
        "msgThroughputOut": rates.bytes_out,
    }


EXAMPLE = BrokerLoad(LoadReport(1.0, [UnitRates(NAME, Rates())], Rates(), 0, 0.0), 0.0, 0.0)
LOAD_SHAPE = shape_of(_load("", 0, EXAMPLE))


def _rack(zone: str, host: str, port: int) -> dict[str, str]:
    return {"rack": f"/{zone.strip('/')}", "hostname": f"{host}:{port}"}


def _text(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
