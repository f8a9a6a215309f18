"""Whether a topic keeps messages after a command that sent some: a topic without subscriptions and retention does not.

A consumer that subscribes later gets nothing then, wherever its subscription begins.
"""

import logging
from collections.abc import Mapping
from typing import cast

from ...protocol.errors import MagnetarError
from ...protocol.topics import TopicName
from ...runtime.tls_contexts import ClientTls
from .session import AdminSession

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""The command has done its work, and only wants to say something about it."""


def unkept(admin_url: str, topic: str, tls: ClientTls, headers: Mapping[str, str]) -> str:
    """What to tell somebody who has just published to this topic. Empty if the messages are kept, or nobody knows."""
    name = TopicName.parse(topic)
    session = AdminSession(admin_url.rstrip("/"), tls, TIMEOUT_S, headers)
    path = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
    parts = {
        "domain": name.domain,
        "tenant": name.tenant,
        "namespace": name.namespace_portion,
        "topic": name.local_name,
    }
    try:
        if session.ask("GET", f"{path}/subscriptions", parts, {}).value():
            return ""
        found = session.ask("GET", f"{path}/retention", parts, {"applied": True}).value() if name.persistent else None
    except MagnetarError as error:
        logger.debug("nobody says whether %s keeps messages: %s", name.full, error)
        return ""
    retention = cast("dict[str, int]", found) if isinstance(found, dict) else {}
    if retention.get("retentionTimeInMinutes") and retention.get("retentionSizeInMB"):
        return ""
    return (
        f"{name.full} has no subscription and no retention, so nobody gets these messages later: subscribe first, or "
        "create a subscription with `magnetar admin topics create-subscription`"
    )
