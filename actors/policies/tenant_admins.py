"""A member's copy of which roles are admins of each tenant.

The coordinator tells them as it tells policies (see `watch`): a tenant is a scope, by its name. Its row has `ADMINS`.
Only tenants with admins are in a listing. Invariants, within a session, and as long as a tenant exists: What is held
never goes back to an older version. A tenant that a whole listing does not name, and of which no change came since the
listing began, has no admins.
"""

from collections.abc import Mapping
from typing import NamedTuple, cast

from ...protocol.errors import ProtocolError
from ...protocol.plain_values import is_list

ADMINS = "adminRoles"
"""The key of a tenant's record, and of its row."""
NOBODY: frozenset[str] = frozenset()


class _HeldAdmins(NamedTuple):
    version: int
    roles: frozenset[str]


class TenantAdmins:
    """See the module."""

    def __init__(self) -> None:
        self._held: dict[str, _HeldAdmins] = {}
        self._unlisted: dict[str, None] = {}
        """Tenants of which neither the listing nor a change has said anything since the listing began."""

    def of(self, tenant: str) -> frozenset[str]:
        """The roles that are admins of a tenant, as far as is known."""
        held = self._held.get(tenant)
        return held.roles if held is not None else NOBODY

    def begin_session(self) -> None:
        """The next listing replaces whatever is held."""
        self._held = {tenant: held._replace(version=-1) for tenant, held in self._held.items()}

    def listing_began(self) -> None:
        """What is said from now on is at least as new as this moment."""
        self._unlisted = dict.fromkeys(self._held)

    def take(self, tenant: str, version: int, admins: frozenset[str]) -> bool:
        """A row of the listing, or a change. A tenant without admins may be gone. Returns whether it is news.

        What is held of a tenant without admins is its version, until the next listing: a page may be older.
        """
        self._unlisted.pop(tenant, None)
        held = self._held.get(tenant)
        if held is not None and held.version >= version:
            return False
        self._held[tenant] = _HeldAdmins(version, admins)
        return admins != (held.roles if held is not None else NOBODY)

    def listing_ended(self) -> bool:
        """The listing is complete. Returns whether a tenant lost its admins by that."""
        gone, self._unlisted = self._unlisted, {}
        lost = [self._held.pop(tenant).roles for tenant in gone]
        return any(lost)


def admins_of(values: object) -> frozenset[str]:
    """The admins in a row; None is a tenant that is gone. Raises ProtocolError for a malformed one."""
    if values is None:
        return NOBODY
    roles = cast("Mapping[object, object]", values).get(ADMINS, []) if isinstance(values, dict) else None
    if not is_list(roles) or not all(isinstance(role, str) for role in roles):
        raise ProtocolError("malformed row of a tenant: its admins are no list of roles")
    return frozenset(cast("list[str]", roles))
