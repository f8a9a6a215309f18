"""What the coordinator answers about tenants, namespaces and their policies."""

import contextlib

from ...protocol.errors import TopicNotFound
from ...protocol.properties import changed_properties
from ...protocol.topics import TopicName
from ...runtime.rpc.connection import RpcConnection
from ..members.contracts_coordinator import NamespacePolicies, PolicyPage
from .office import Office
from .topic_policies import policy_page


class NamespaceMethods:
    """See the module."""

    def __init__(self, office: Office) -> None:
        self._namespaces = office.namespaces
        self._registry = office.registry
        self._deletions = office.namespace_deletions
        self._topics = office.topic_policies

    async def rpc_namespaces(self, connection: RpcConnection, tenant: str) -> list[str]:
        """Raises NoSuchKey for a missing tenant."""
        return self._namespaces.names(tenant)

    async def rpc_namespace(self, connection: RpcConnection, namespace: str) -> NamespacePolicies:
        """The policies of a namespace. Raises TopicNotFound."""
        return self._namespaces.policies(namespace)

    async def rpc_create_namespace(
        self,
        connection: RpcConnection,
        namespace: str,
        policies: dict[str, object] | None = None,
        properties: dict[str, str] | None = None,
    ) -> None:
        """Raises KeyExists, NoSuchKey (no such tenant), InvalidTopicName, InvalidConfiguration (a wrong policy)."""
        await self._namespaces.create(namespace, policies or {}, properties)

    async def rpc_namespace_properties(self, connection: RpcConnection, namespace: str) -> dict[str, str]:
        """Raises TopicNotFound."""
        return self._namespaces.properties(namespace)

    async def rpc_change_namespace_properties(
        self,
        connection: RpcConnection,
        namespace: str,
        put: dict[str, str],
        remove: list[str] | None = None,
        clear: bool = False,
    ) -> None:
        """Raises TopicNotFound, InvalidConfiguration (too much)."""
        await self._namespaces.change(
            namespace,
            lambda record: record.with_properties(
                changed_properties(record.properties, put, remove or (), clear=clear)
            ),
        )

    async def rpc_set_policy(
        self, connection: RpcConnection, namespace: str, policy: str, value: object = None
    ) -> None:
        """Set one policy of a namespace; None takes the value away.

        Raises TopicNotFound, InvalidConfiguration (no such policy, or a wrong value).
        """
        await self._namespaces.set_policy(namespace, policy, value)

    async def rpc_delete_namespace(self, connection: RpcConnection, namespace: str, force: bool = False) -> None:
        """Delete a namespace; with `force` also its topics, with all that they store (see `namespace_deletions`).

        Raises TopicNotFound; NotAllowedError while it has topics, unless forced; ServiceUnitNotReady: it takes long and
        goes on.
        """
        if force:
            await self._deletions.delete(namespace)
        else:
            await self._namespaces.delete(namespace, self._registry.names_in)

    async def rpc_tenants(self, connection: RpcConnection) -> list[str]:
        return self._namespaces.tenants.names()

    async def rpc_tenant(self, connection: RpcConnection, tenant: str) -> dict[str, object]:
        """Raises NoSuchKey."""
        return self._namespaces.tenants.get(tenant)

    async def rpc_put_tenant(
        self, connection: RpcConnection, tenant: str, record: dict[str, object], create: bool = True
    ) -> None:
        """Create a tenant, or change one. Raises KeyExists, NoSuchKey, InvalidTopicName."""
        await self._namespaces.put_tenant(tenant, record, create=create)

    async def rpc_delete_tenant(self, connection: RpcConnection, tenant: str, force: bool = False) -> None:
        """Delete a tenant; with `force` first its namespaces, one after the other (see `namespace_deletions`).

        Raises NoSuchKey; NotAllowedError while it has namespaces, with `force` if one was created meanwhile;
        ServiceUnitNotReady: it takes long. After any error the call can be repeated: it goes on with what is left.
        """
        for namespace in self._namespaces.names(tenant) if force else ():
            with contextlib.suppress(TopicNotFound):  # another call has deleted it
                await self._deletions.delete(namespace)
        await self._namespaces.delete_tenant(tenant)

    async def rpc_policies(self, connection: RpcConnection, after: str) -> PolicyPage:
        """A page of all namespaces and topics that have policies, behind the name `after`."""
        return policy_page(self._namespaces, self._topics, after)

    async def rpc_topic_policies(self, connection: RpcConnection, topic: str) -> NamespacePolicies:
        """What is set for a topic. Raises TopicNotFound."""
        return self._topics.policies(TopicName.parse(topic))

    async def rpc_set_topic_policy(
        self, connection: RpcConnection, topic: str, policy: str, value: object = None
    ) -> None:
        """Set one policy of a topic; None takes the value away. Raises what `TopicPolicies.set` raises."""
        await self._topics.set(TopicName.parse(topic), policy, value)
