"""The metadata record of a namespace: its policies, and when it was created.

Policies that are not in the table stay in the record as they are: a newer release may have set them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from ...protocol.errors import InvalidConfiguration, MetadataError, ProtocolError
from ...runtime.rpc.messages import pack, unpack
from .effective import POLICIES
from .kinds import Policy, PolicyValues

_POLICIES = "policies"


@dataclass(frozen=True)
class NamespaceRecord:
    """See the module. `fields` is the record as a map."""

    fields: Mapping[str, object]

    @classmethod
    def new(cls, policies: PolicyValues, created_ms: int) -> "NamespaceRecord":
        """The record of a new namespace. Raises InvalidConfiguration for an unknown policy, or a wrong value."""
        for name, value in policies.items():
            _policy_of(name).check(value)
        return cls({_POLICIES: _without_unset(policies), "created_ms": created_ms})

    @property
    def policies(self) -> PolicyValues:
        """What is set, by name."""
        return cast("PolicyValues", self.fields[_POLICIES])

    def with_policy(self, name: str, value: object) -> "NamespaceRecord":
        """The record with one policy set; None takes it away. Raises InvalidConfiguration like `new`."""
        policy = _policy_of(name)
        if value is None:
            value = policy.unset
        else:
            policy.check(value)
        return NamespaceRecord({**self.fields, _POLICIES: _without_unset({**self.policies, name: value})})

    def pack(self) -> bytes:
        """The record as it is stored."""
        return pack(dict(self.fields))

    @classmethod
    def unpack(cls, value: bytes) -> "NamespaceRecord":
        """The inverse of `pack`. Raises MetadataError for anything else, and for a policy with a wrong value."""
        try:
            fields = cast("object", unpack(value))
            if not isinstance(fields, dict):
                raise MetadataError("not the record of a namespace: a map is expected")
            record = cls(cast("dict[str, object]", fields))
            check_values(record.fields.get(_POLICIES))
        except (ProtocolError, InvalidConfiguration) as error:
            raise MetadataError(f"not the record of a namespace: {error}") from error
        return record


def check_values(policies: object) -> PolicyValues:
    """Policies that were stored or sent, once they are proven to be a map with right values.

    Raises ProtocolError for anything that is no map, InvalidConfiguration for a wrong value of a policy in the table.
    """
    if not isinstance(policies, dict):
        raise ProtocolError(f"policies are a map by name, not {policies!r:.100}")
    values = cast("dict[str, object]", policies)
    for name, policy in POLICIES.items():
        if name in values:
            policy.check(values[name])
    return values


def _policy_of(name: str) -> Policy:
    policy = POLICIES.get(name)
    if policy is None:
        raise InvalidConfiguration(f"there is no policy {name[:100]!r}; there are: {', '.join(sorted(POLICIES))}")
    return policy


def _without_unset(policies: PolicyValues) -> PolicyValues:
    return {name: value for name, value in policies.items() if name not in POLICIES or value != POLICIES[name].unset}
