"""Which topics a client's pattern takes, decided by the broker.

The pattern is a regular expression that a stranger has sent. RE2 matches it in a time that grows with the length of the
name alone. With Python's engine the time can double with each character. Look-ahead, look-behind and references to
groups are therefore no patterns here. `MEMORY_MAX_BYTES` bounds the program of one pattern, and so the time that one
name takes: 0.3 ms, with the worst patterns that were found.

As in Pulsar, the name is matched as a whole, without its domain and without the suffix of a partition.
"""

from collections.abc import Iterable

import re2

from ...protocol.errors import InvalidTopicName
from ...protocol.system_topics import is_system_topic
from ...protocol.topics import NON_PERSISTENT, PERSISTENT

MEMORY_MAX_BYTES = 64 << 10
MATCHED_AT_ONCE = 100
"""Names that are matched before others get their turn on the event loop."""
EVERYTHING = ".*"


class TopicFilter:
    """See the module."""

    def __init__(self, pattern: str) -> None:
        """Raises InvalidTopicName for what RE2 does not take."""
        self.pattern = without_domain(pattern)
        options = re2.Options()
        options.max_mem = MEMORY_MAX_BYTES
        options.log_errors = False
        options.never_capture = True
        try:
            self._expression = re2.compile(self.pattern.encode(), options)
        except re2.error as error:
            reason = error.args[0] if error.args else b""
            text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise InvalidTopicName(f"Invalid topics pattern: {text}") from None
        self._everything = self.pattern == EVERYTHING

    def takes(self, topic: str) -> bool:
        """Whether the pattern matches a topic's full name, which is not that of a partition; never a system topic's."""
        if is_system_topic(topic):
            return False
        return self._everything or self._expression.fullmatch(topic.partition("://")[2].encode()) is not None

    def among(self, topics: Iterable[str]) -> list[str]:
        """Those that the pattern matches."""
        return [topic for topic in topics if self.takes(topic)]


def without_domain(pattern: str) -> str:
    """The pattern for names without their domain. Raises InvalidTopicName for a domain that does not exist."""
    before, scheme, rest = pattern.partition("://")
    if not scheme:
        return pattern
    rest = rest.partition("://")[0]
    for domain in (NON_PERSISTENT, PERSISTENT):  # the longer one first: it ends in the other
        if before.endswith(domain):
            return before.removesuffix(domain) + rest
    raise InvalidTopicName(f"Invalid topics pattern: Does not support topic domain: {before[:100]}")
