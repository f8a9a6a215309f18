"""What one policy is: its names outside, its kind of values, its default, and on which levels it may be set.

A policy has a default, mostly a setting of the broker. With `namespace` a namespace may have a value of its own, with
`topic` a topic. The table of all policies stands in `effective`; everything else that deals with policies walks it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from ...protocol.errors import InvalidConfiguration
from ...protocol.plain_values import is_text_map
from ...runtime.settings.declarations import Settings
from .kinds import Kind

PolicyValues = Mapping[str, object]
"""The policies of one level (a namespace) by name, in plain form. What is not set there is missing."""

T = TypeVar("T")
Acceptance = Callable[[T, Settings, PolicyValues], str]
"""What a cluster has against a new value: given the settings, and what else is set on the level. Empty for nothing."""

_METADATA = "policy"


@dataclasses.dataclass(frozen=True)
class PolicyPath:
    """How the admin reaches a policy of one level.

    `path` is the last part of its path. `name` is the word in refusals, the path without one. `empty` is what GET shows
    while nothing is set; None is an empty body. Without `removable` there is no DELETE. `bad_request` says that a wrong
    value is answered with status 400; else it is 412. `empty_removes` says that a POST without a body takes the value
    away; else it is refused. `no_content` says that GET answers 204 while nothing is set, and knows no `applied`; with
    `applied` False it knows none either. `put`
    says that PUT sets the value; else it is POST. Without `settable` it is set and removed by a path of its own.
    `parameter` is the name in the query that has the value, a whole number; then there is no body. Without `routed`
    the policy has paths and commands of its own, which are not made from this declaration.
    """

    path: str
    name: str = ""
    empty: object = None
    removable: bool = True
    bad_request: bool = False
    empty_removes: bool = False
    no_content: bool = False
    put: bool = False
    settable: bool = True
    parameter: str = ""
    applied: bool = True
    routed: bool = True

    @property
    def word(self) -> str:
        return self.name or self.path


@dataclasses.dataclass(frozen=True)
class Policy(Generic[T]):
    """See the module.

    `key` is the name in Pulsar's JSON of all policies of a namespace. Under `by_cluster` Pulsar has a map by cluster
    there. `accepts` is asked when a value is set, never when a record is read.
    """

    kind: Kind[T]
    default: Callable[[Settings], T]
    doc: str
    namespace: PolicyPath | None
    topic: PolicyPath | None
    key: str = ""
    by_cluster: bool = False
    accepts: Acceptance[T] | None = None

    def check(self, value: object, path: PolicyPath | None = None) -> T:
        """The value of a plain one. Raises InvalidConfiguration, with the word of that path, unless it is one."""
        found_path = path or self.namespace or self.topic
        word = found_path.word if found_path is not None else self.key
        if not self.kind.fits(value):
            raise InvalidConfiguration(f"{word} is {self.kind.text}, not {value!r:.100}")
        found = self.kind.read(value)
        if fault := self.kind.fault(found, word):
            raise InvalidConfiguration(fault)
        return found

    def changed(
        self, stored: object, value: object, settings: Settings, others: PolicyValues, path: PolicyPath
    ) -> object:
        """The value to store in place of the stored one, None for none. Raises like `take`.

        Words of a stored map that this release does not understand stay: a newer one has set them.
        """
        if value is None:
            return None
        kept = self.kind.unknown_words(stored)
        if kept and is_text_map(value):
            value = {word: item for word, item in value.items() if kept.get(word) != item}
        taken = self.take(value, settings, others, path)
        return {**kept, **taken} if kept and is_text_map(taken) else taken

    def take(self, value: object, settings: Settings, others: PolicyValues, path: PolicyPath) -> object:
        """A new value in its complete plain form. Raises InvalidConfiguration if the cluster does not accept it."""
        found = self.check(value, path)
        refusal = self.accepts(found, settings, others) if self.accepts is not None else ""
        if refusal:
            raise InvalidConfiguration(refusal)
        return self.kind.write(found)

    def resolve(self, settings: Settings, values: list[object]) -> T:
        """What holds. `values` are those of the levels that have one, from the widest level to the narrowest."""
        found = self.default(settings)
        for value in values:
            narrow = self.kind.read(value)
            found = self.kind.over(found, narrow) if found is not None else narrow
        return found


def policy(
    kind: Kind[T],
    default: Callable[[Settings], T],
    doc: str,
    namespace: PolicyPath | str | None,
    topic: PolicyPath | str | None = None,
    *,
    key: str = "",
    by_cluster: bool = False,
    accepts: Acceptance[T] | None = None,
) -> T:
    """Declare a field of `EffectivePolicies`; see `Policy`."""
    wide = PolicyPath(namespace) if isinstance(namespace, str) else namespace
    narrow = PolicyPath(topic) if isinstance(topic, str) else topic
    return dataclasses.field(metadata={_METADATA: Policy(kind, default, doc, wide, narrow, key, by_cluster, accepts)})


def policies_of(declaring: type) -> dict[str, Policy[object]]:
    """The policies that the fields of a dataclass declare, by name."""
    found: dict[str, Policy[object]] = {}
    for item in dataclasses.fields(declaring):
        declared: Policy[object] = item.metadata[_METADATA]
        found[item.name] = declared if declared.key else dataclasses.replace(declared, key=item.name)
    return found
