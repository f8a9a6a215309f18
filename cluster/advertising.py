"""A check of the addresses that the brokers of a new cluster would tell clients, before any process starts."""

import os
from collections.abc import Sequence

from ..actors.processes.plan import NodePlan
from ..protocol.errors import SettingError
from ..protocol.names import ROLE_BROKER
from ..runtime.settings.declarations import Settings
from ..runtime.settings.placeholders import BrokerPlace


def check_advertised(settings: Settings, nodes: Sequence[NodePlan]) -> None:
    """Raise SettingError for addresses that are impossible, or that would lead clients of one broker to another.

    What the environment of another node says is not known here: each broker checks its own when it starts.
    """
    if settings.advertises_what_nodes_say:
        return
    owners: dict[str, str] = {}
    for node in nodes:
        if node.role != ROLE_BROKER:
            continue
        told = settings.advertised(BrokerPlace(node.node_id, node.advertised_host or node.host, node.port, os.environ))
        for url in dict.fromkeys([told.url, *(one.url for one in told.listeners.values() if one.direct)]):
            other = owners.setdefault(url, node.node_id)
            if other != node.node_id:
                raise SettingError(
                    f"{other} and {node.node_id} would both advertise {url}: write a placeholder such as {{number}} or "
                    "{port} into advertisedListeners or advertisedAddress, or a pulsar+proxy:// URL"
                )
