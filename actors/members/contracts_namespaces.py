"""What the coordinator offers about tenants, namespaces and policies. A part of `CoordinatorContract`."""

from dataclasses import dataclass
from typing import NamedTuple

from ...runtime.rpc.contract import Contract, method
from .permissions import ADMIN, BROKER

NAMESPACE_DELETE_TIMEOUT_S = 120.0


class NamespacePolicies(NamedTuple):
    """The policies of a namespace or a topic by name, and the version of its record. `policies` None: it has no record.

    `namespace` is the name: `tenant/namespace`, or the full name of a topic, which has `://` in it.
    """

    namespace: str
    version: int
    policies: dict[str, object] | None


@dataclass(frozen=True)
class PolicyPage:
    """A part of all namespaces and topics that have policies, and whether more follow."""

    items: list[NamespacePolicies]
    more: bool


class NamespaceContract(Contract):
    """See the module."""

    @method(ADMIN)
    async def namespaces(self, *, tenant: str) -> list[str]:
        """Raises NoSuchKey for a missing tenant."""
        ...

    @method(BROKER | ADMIN)
    async def namespace(self, *, namespace: str) -> NamespacePolicies:
        """The policies of a namespace. Raises TopicNotFound."""
        ...

    @method(ADMIN)
    async def create_namespace(
        self, *, namespace: str, policies: dict[str, object] | None = None, properties: dict[str, str] | None = None
    ) -> None:
        """Raises KeyExists, NoSuchKey (no such tenant), InvalidTopicName, InvalidConfiguration (a wrong policy)."""
        ...

    @method(ADMIN)
    async def namespace_properties(self, *, namespace: str) -> dict[str, str]:
        """What an administrator has noted of a namespace. Raises TopicNotFound."""
        ...

    @method(ADMIN)
    async def change_namespace_properties(
        self, *, namespace: str, put: dict[str, str], remove: list[str] | None = None, clear: bool = False
    ) -> None:
        """Add properties, and remove some, or all others. Raises TopicNotFound, InvalidConfiguration (too much)."""
        ...

    @method(ADMIN)
    async def set_policy(self, *, namespace: str, policy: str, value: object = None) -> None:
        """Set one policy of a namespace, by its name in the table of policies; None takes the value away.

        Raises TopicNotFound, InvalidConfiguration (no such policy, or a wrong value).
        """
        ...

    @method(ADMIN, timeout_s=NAMESPACE_DELETE_TIMEOUT_S)
    async def delete_namespace(self, *, namespace: str, force: bool = False) -> None:
        """Delete a namespace; with `force` also its topics, with all that they store.

        Raises TopicNotFound; NotAllowedError while it has topics, unless forced; ServiceUnitNotReady: it takes long and
        goes on.
        """
        ...

    @method(ADMIN)
    async def tenants(self) -> list[str]:
        """Names of all tenants."""
        ...

    @method(ADMIN)
    async def tenant(self, *, tenant: str) -> dict[str, object]:
        """The record of a tenant. Raises NoSuchKey."""
        ...

    @method(ADMIN)
    async def put_tenant(self, *, tenant: str, record: dict[str, object], create: bool = True) -> None:
        """Create a tenant, or change one. Raises KeyExists, NoSuchKey, InvalidTopicName."""
        ...

    @method(ADMIN, timeout_s=NAMESPACE_DELETE_TIMEOUT_S)
    async def delete_tenant(self, *, tenant: str, force: bool = False) -> None:
        """Delete a tenant; with `force` also its namespaces, with all that is in them.

        Raises NoSuchKey; NotAllowedError while it has namespaces; ServiceUnitNotReady: it takes long and goes on.
        """
        ...

    @method(BROKER)
    async def policies(self, *, after: str) -> PolicyPage:
        """Namespaces and topics that have policies and whose names are greater than `after`."""
        ...

    @method(BROKER | ADMIN)
    async def topic_policies(self, *, topic: str) -> NamespacePolicies:
        """What is set for a topic. Raises TopicNotFound."""
        ...

    @method(ADMIN)
    async def set_topic_policy(self, *, topic: str, policy: str, value: object = None) -> None:
        """Set one policy of a topic; None takes the value away.

        Raises TopicNotFound, InvalidConfiguration (no such policy, or a wrong value), NotAllowedError (a partition, or
        a topic without a record), ServiceUnitNotReady (it is being deleted).
        """
        ...
