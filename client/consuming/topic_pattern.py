"""Which topics a pattern takes: those of one namespace whose last part matches.

The text is a topic name whose last part is a regular expression. Tenant and namespace are literal: a pattern that
leaves one namespace is refused. The client matches whole names. A partitioned topic counts once, by its own name.

Brokers are asked with `for_brokers`. They match with another engine, so an expression that may mean something else
there, or nothing, is not sent: the broker then lists everything. The client matches what a broker lists in any case.
"""

import re

from ...protocol.errors import InvalidConfiguration, InvalidTopicName
from ...protocol.topics import DEFAULT_NAMESPACE, DEFAULT_TENANT, NON_PERSISTENT, PERSISTENT, TopicName, parse_namespace
from ..core.configuration import RegexSubscriptionMode

EVERYTHING = ".*"
_COMMON = re.compile(r"(?:[A-Za-z0-9_.*+?|()\[\]^-]|\\[.-])+")
"""What means the same to Python and to RE2, which brokers use."""


class TopicPattern:
    """See the module."""

    def __init__(self, pattern: re.Pattern[str], mode: RegexSubscriptionMode) -> None:
        """Raises InvalidTopicName, InvalidConfiguration for what is no pattern within one namespace."""
        text = pattern.pattern
        domain, scheme, rest = text.partition("://")
        if not scheme:
            domain, rest = "", text
        elif domain not in (PERSISTENT, NON_PERSISTENT):
            raise InvalidTopicName(
                f"the pattern {text!r} has an unknown domain: write persistent:// or non-persistent://, "
                "and choose among both with regex_subscription_mode"
            )
        parts = rest.split("/", 2)
        if len(parts) == 1 and not scheme:
            parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, rest]
        if len(parts) != 3 or not parts[2]:
            raise InvalidTopicName(
                f"the pattern {text!r} is not <tenant>/<namespace>/<regular expression of topics>: name one namespace"
            )
        local = parts[2]
        if "://" in local:
            raise InvalidTopicName(
                f"the pattern {text!r} names more than one namespace: subscribe once for each namespace"
            )
        self.text = text
        self.namespace = "/".join(parse_namespace("/".join(parts[:2])))
        self.mode = mode
        domains = {
            RegexSubscriptionMode.PersistentOnly: (PERSISTENT,),
            RegexSubscriptionMode.NonPersistentOnly: (NON_PERSISTENT,),
            RegexSubscriptionMode.AllTopics: (PERSISTENT, NON_PERSISTENT),
        }
        self._domains = domains[mode]
        if domain and domain not in self._domains:
            raise InvalidConfiguration(
                f"the pattern {text!r} asks for {domain} topics, but regex_subscription_mode is {mode.name}"
            )
        try:
            self._local = re.compile(local, pattern.flags)
        except re.error as error:
            raise InvalidConfiguration(
                f"the part of {text!r} behind the namespace is not a regular expression: {error}"
            ) from None

    def topic_of(self, name: str) -> TopicName | None:
        """The topic that a full name is, or is a partition of, if the pattern takes it."""
        topic = TopicName.parse(name).without_partition()
        if topic.namespace != self.namespace or topic.domain not in self._domains:
            return None
        return topic if self._local.fullmatch(topic.local_name) else None

    @property
    def for_brokers(self) -> str:
        """A pattern by which a broker lists all that this one takes, and perhaps more."""
        local = self._local.pattern
        if self._local.flags != re.compile("").flags or "(?" in local or not _COMMON.fullmatch(local):
            return EVERYTHING
        return f"{self.namespace}/({local})" if "|" in local else f"{self.namespace}/{local}"
