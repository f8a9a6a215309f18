"""What one policy is: its name outside, which values it takes, and which of several levels counts.

A policy has a default, a setting of the broker. A namespace may have a value of its own. The table of all policies
stands in `effective`; everything else that deals with policies walks that table.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...protocol.errors import InvalidConfiguration

INT_MAX = (1 << 31) - 1
"""Pulsar's policies are of Java's type int."""

PolicyValues = Mapping[str, object]
"""The policies of one level (a namespace) by name. What is not set there is missing."""

_METADATA = "policy"


@dataclass(frozen=True)
class Policy:
    """See the module. Subclasses are the kinds of values.

    `path` is the last part of the admin's path and the name in refusals. `setting` is the field of `Settings` that is
    the default.
    """

    path: str
    setting: str
    doc: str

    @property
    def kind(self) -> str:
        """What a value is, for refusals."""
        raise NotImplementedError

    @property
    def unset(self) -> object:
        """What a namespace without a value shows. To set this is to remove the value."""
        return None

    @property
    def removable(self) -> bool:
        """Whether Pulsar has a way to take the value away."""
        return self.unset is None

    def fits(self, value: object) -> bool:
        """Whether a value is of the right type."""
        raise NotImplementedError

    def check(self, value: object) -> None:
        """Raise InvalidConfiguration unless a namespace may have this value."""
        if not self.fits(value):
            raise InvalidConfiguration(f"{self.path} is {self.kind}, not {value!r:.100}")

    def resolve(self, default: object, values: Sequence[object]) -> object:
        """What holds. `values` are those of the levels that have one, from the widest level to the narrowest."""
        return values[-1] if values else default


class Bound(Policy):
    """An upper bound on a count; 0 for no bound. The narrowest level counts."""

    @property
    def kind(self) -> str:
        return f"a whole number up to {INT_MAX}"

    def fits(self, value: object) -> bool:
        return type(value) is int and -INT_MAX - 1 <= value <= INT_MAX

    def check(self, value: object) -> None:
        super().check(value)
        assert isinstance(value, int)
        if value < 0:
            raise InvalidConfiguration(f"{self.path} must be 0 or more")


class Switch(Policy):
    """Something that holds where any level says so. A namespace cannot take back what the broker's setting asks for."""

    @property
    def kind(self) -> str:
        return "true or false"

    @property
    def unset(self) -> object:
        return False

    def fits(self, value: object) -> bool:
        return type(value) is bool

    def resolve(self, default: object, values: Sequence[object]) -> object:
        return bool(default) or True in values


def bound(path: str, setting: str, doc: str) -> int:
    """Declare a field of `EffectivePolicies` that is a bound."""
    return dataclasses.field(metadata={_METADATA: Bound(path, setting, doc)})


def switch(path: str, setting: str, doc: str) -> bool:
    """Declare a field of `EffectivePolicies` that is a switch."""
    return dataclasses.field(metadata={_METADATA: Switch(path, setting, doc)})


def policies_of(declaring: type) -> dict[str, Policy]:
    """The policies that the fields of a dataclass declare, by name."""
    return {item.name: item.metadata[_METADATA] for item in dataclasses.fields(declaring)}
