"""Who did what: a line of JSON for each, where `auditLogEnabled` is set.

A line tells what changes something or lets somebody in, and what was refused:

- each request to the admin HTTP that is no read, and each that is refused (401, 403);
- each connection that was authenticated, or was not;
- PRODUCER, SUBSCRIBE, SEEK, UNSUBSCRIBE and GET_OR_CREATE_SCHEMA, and each command that is refused.

What was sent is in no line: no credential, no body, no message. Texts of clients are cut at `TEXT_MAX` characters.
"""

import json
import logging
from datetime import UTC, datetime

from ...runtime.environment import Environment
from ...runtime.logs import AUDIT_LOGGER
from ...runtime.settings.declarations import Settings
from .credentials import Principal

TEXT_MAX = 500

logger = logging.getLogger(AUDIT_LOGGER)


class AuditLog:
    """The lines of one member."""

    def __init__(self, env: Environment, settings: Settings, member: str) -> None:
        self.enabled = settings.audit_log_enabled
        self._env = env
        self._member = member

    def tell(self, principal: Principal, address: str, action: str, target: str, refused: str = "") -> None:
        """Somebody did something to a target, or it was `refused` to him for that reason."""
        if not self.enabled:
            return
        line = {
            "time": datetime.fromtimestamp(self._env.clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds"),
            "member": self._member,
            "role": principal.role,
            **({"originalRole": principal.original_role} if principal.original_role else {}),
            "address": address,
            "action": action,
            "target": target[:TEXT_MAX],
            "outcome": "refused" if refused else "permitted",
            **({"reason": refused[:TEXT_MAX]} if refused else {}),
        }
        logger.info("%s", json.dumps(line))
