"""The metadata record of the policies of a namespace or a topic, and when it was created.

Policies that are not in the table stay in the record as they are, and so do values that are not understood. A newer
release may have set them. What holds leaves them out (`EffectivePolicies.resolve`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

from ...protocol.errors import InvalidConfiguration, MetadataError, ProtocolError
from ...protocol.plain_values import is_text_map
from ...protocol.properties import Properties
from ...runtime.rpc.messages import pack, unpack
from ...runtime.settings.declarations import Settings
from .effective import POLICIES, understood
from .policy import Policy, PolicyValues

_POLICIES = "policies"
_DELETED = "deleted"
_PROPERTIES = "properties"
GRANTS = "auth_policies"
GRANTS_OF_TOPICS = "destination_auth"


@dataclass(frozen=True)
class NamespaceRecord:
    """See the module. `fields` is the record as a map."""

    fields: Mapping[str, object]

    @classmethod
    def new(cls, policies: PolicyValues, created_ms: int, settings: Settings) -> "NamespaceRecord":
        """The record of a new namespace. Raises InvalidConfiguration for an unknown policy, or a wrong value."""
        record = cls({_POLICIES: {}, "created_ms": created_ms})
        for name, value in policies.items():
            record = record.with_policy(name, value, settings)
        return record

    @property
    def policies(self) -> PolicyValues:
        """What is set, by name."""
        return cast("PolicyValues", self.fields[_POLICIES])

    @property
    def deleted(self) -> bool:
        """Whether the namespace is being deleted, with all that is in it."""
        return self.fields.get(_DELETED) is True

    @property
    def properties(self) -> Properties:
        """What an administrator has noted of the namespace."""
        return cast("Properties", self.fields.get(_PROPERTIES, {}))

    def with_properties(self, properties: Properties) -> "NamespaceRecord":
        """The record with these."""
        return NamespaceRecord({**self.fields, _PROPERTIES: properties})

    def as_deleted(self) -> "NamespaceRecord":
        """The record with the mark of that."""
        return NamespaceRecord({**self.fields, _DELETED: True})

    def with_policy(self, name: str, value: object, settings: Settings, *, topic: bool = False) -> "NamespaceRecord":
        """The record with one policy set; None takes it away. Raises InvalidConfiguration like `new`, and for a policy
        that a topic does not have."""
        policy = _policy_of(name)
        path = policy.topic if topic else policy.namespace
        if path is None:
            here, there = ("topic", "namespace") if topic else ("namespace", "topic")
            raise InvalidConfiguration(f"a {here} does not have the policy {name}: set it on the {there}")
        others = {other: item for other, item in self.policies.items() if other != name}
        value = policy.changed(self.policies.get(name), value, settings, understood(others), path)
        changed = others if value is None or value == policy.kind.nothing else {**others, name: value}
        return NamespaceRecord({**self.fields, _POLICIES: changed})

    def without_grants(self, topics: Collection[str]) -> "NamespaceRecord":
        """The record without what `auth_policies` grants at these topics; the same record if that is nothing.

        Values that are not understood stay.
        """
        grants = self.policies.get(GRANTS)
        by_topic = grants.get(GRANTS_OF_TOPICS) if is_text_map(grants) else None
        if not is_text_map(grants) or not is_text_map(by_topic) or by_topic.keys().isdisjoint(topics):
            return self
        kept = {name: item for name, item in grants.items() if name != GRANTS_OF_TOPICS}
        if left := {topic: roles for topic, roles in by_topic.items() if topic not in topics}:
            kept[GRANTS_OF_TOPICS] = left
        others = {name: item for name, item in self.policies.items() if name != GRANTS}
        return NamespaceRecord({**self.fields, _POLICIES: {**others, GRANTS: kept} if kept else others})

    def pack(self) -> bytes:
        """The record as it is stored."""
        return pack(dict(self.fields))

    @classmethod
    def unpack(cls, value: bytes) -> "NamespaceRecord":
        """The inverse of `pack`. Raises MetadataError for anything else."""
        try:
            fields = cast("object", unpack(value))
            if not isinstance(fields, dict):
                raise MetadataError("not the record of a namespace: a map is expected")
            record = cls(cast("dict[str, object]", fields))
            check_values(record.fields.get(_POLICIES))
        except ProtocolError as error:
            raise MetadataError(f"not the record of a namespace: {error}") from error
        return record

    @classmethod
    def read(cls, key: str, value: bytes) -> "NamespaceRecord":
        """What is stored under a key. Raises MetadataError, which names the key, like `unpack`."""
        try:
            return cls.unpack(value)
        except MetadataError as error:
            raise MetadataError(f"the metadata record {key} cannot be read: {error}", key=key) from error


def check_values(policies: object) -> PolicyValues:
    """Policies that were stored or sent, once they are proven to be a map by name. Raises ProtocolError."""
    if not is_text_map(policies):
        raise ProtocolError(f"policies are a map by name, not {policies!r:.100}")
    return policies


def _policy_of(name: str) -> Policy[object]:
    policy = POLICIES.get(name)
    if policy is None:
        raise InvalidConfiguration(f"there is no policy {name[:100]!r}; there are: {', '.join(sorted(POLICIES))}")
    return policy
