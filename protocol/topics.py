"""Topic names: parsing, writing, partitions.

`x` means `persistent://public/default/x`, `t/n/x` means `persistent://t/n/x`; both domains can be written in full.
The partitions of a topic are topics named `<topic>-partition-<i>`. Only the canonical number counts as a partition:
`-partition-01` is an ordinary name, so that no two names mean the same partition.

Whether a topic exists, and how many partitions it has, is not known here.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from .errors import InvalidTopicName

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"
NAME_SIZE_MAX_BYTES = 4096
NAMES_REMEMBERED_MAX = 2048
ENTITY_MAX_CHARS = 1024
"""Names whose parts are kept: each one is parsed several times in a row, by each function that handles it."""

_PARTITION = re.compile(r"-partition-(0|[1-9][0-9]{0,8})\Z")
_NAMED_ENTITY = re.compile(r"[-=:.\w]+\Z", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """One topic or one partition of a topic. `partition` is −1 when the name has no partition suffix.

    `local_name` includes the suffix. Build it with `parse` or `of`, which check the parts.
    """

    domain: str
    tenant: str
    namespace_portion: str
    local_name: str
    partition: int

    @staticmethod
    @lru_cache(maxsize=NAMES_REMEMBERED_MAX)
    def parse(text: str) -> TopicName:
        """The topic that `text` names, short or in full; InvalidTopicName with the reason otherwise."""
        domain, scheme, rest = text.partition("://")
        if scheme:
            if domain not in (PERSISTENT, NON_PERSISTENT):
                raise InvalidTopicName(
                    f"the topic name {_shown(text)} has an unknown domain: write persistent:// or non-persistent://",
                    topic=_shown(text),
                )
            parts = rest.split("/")
            if len(parts) != 3:
                raise InvalidTopicName(
                    f"{_shown(text)} is not <domain>://<tenant>/<namespace>/<topic>", topic=_shown(text)
                )
            return TopicName.of(parts[0], parts[1], parts[2], domain)
        parts = text.split("/")
        if len(parts) == 1:
            return TopicName.of(DEFAULT_TENANT, DEFAULT_NAMESPACE, text)
        if len(parts) == 3:
            return TopicName.of(parts[0], parts[1], parts[2])
        raise InvalidTopicName(
            f"{_shown(text)} is neither <topic> nor <tenant>/<namespace>/<topic>", topic=_shown(text)
        )

    @staticmethod
    def of(tenant: str, namespace: str, local_name: str, domain: str = PERSISTENT) -> TopicName:
        """The topic of these parts (`local_name` not percent-encoded); InvalidTopicName if one is impossible."""
        if domain not in (PERSISTENT, NON_PERSISTENT):
            raise InvalidTopicName(
                f"unknown domain {_shown(domain)}: write persistent or non-persistent", topic=_shown(local_name)
            )
        check_named_entity("tenant", tenant)
        check_named_entity("namespace", namespace)
        _check_local_name(local_name)
        if len(tenant) + len(namespace) + len(local_name.encode()) > NAME_SIZE_MAX_BYTES:
            raise InvalidTopicName("the topic name is too long: shorten it", size_max_bytes=NAME_SIZE_MAX_BYTES)
        found = _PARTITION.search(local_name)
        # "-partition-0" alone is a partition of nothing: an ordinary name.
        partition = int(found[1]) if found and found.start() > 0 else -1
        return TopicName(domain, tenant, namespace, local_name, partition)

    @property
    def persistent(self) -> bool:
        """Whether messages of this topic are stored."""
        return self.domain == PERSISTENT

    @property
    def namespace(self) -> str:
        """`tenant/namespace`."""
        return f"{self.tenant}/{self.namespace_portion}"

    @property
    def full(self) -> str:
        """The name in full, partition suffix included."""
        return f"{self.domain}://{self.tenant}/{self.namespace_portion}/{self.local_name}"

    @property
    def partitioned_name(self) -> str:
        """The name in full of the topic that this is a partition of (or of itself)."""
        return self.without_partition().full

    @property
    def path(self) -> str:
        """`persistent/<tenant>/<namespace>/<percent-encoded local name>`, for metadata keys and REST paths."""
        return f"{self.domain}/{self.tenant}/{self.namespace_portion}/{quote(self.local_name, safe='')}"

    def without_partition(self) -> TopicName:
        """The topic that this is a partition of, or itself."""
        if self.partition < 0:
            return self
        local = self.local_name[: self.local_name.rindex("-partition-")]
        return TopicName.of(self.tenant, self.namespace_portion, local, self.domain)

    def partition_topic(self, index: int) -> TopicName:
        """Partition `index` of this topic. InvalidTopicName for a partition of a partition or a negative index."""
        if self.partition >= 0 or not 0 <= index <= 999_999_999:
            raise InvalidTopicName(f"{self.full} has no partition {index}", topic=self.full)
        return TopicName.of(self.tenant, self.namespace_portion, f"{self.local_name}-partition-{index}", self.domain)

    def partition_name(self, index: int) -> str:
        """The name in full of partition `index`; errors as `partition_topic`."""
        return self.partition_topic(index).full

    def __str__(self) -> str:
        return self.full


def topic_of_path(path: str) -> TopicName:
    """The topic with that path (`TopicName.path`)."""
    domain, tenant, namespace, local = path.split("/")
    return TopicName.of(tenant, namespace, unquote(local), domain)


def check_named_entity(what: str, name: str) -> None:
    """Raise InvalidTopicName unless `name` can name a tenant or a namespace: letters, digits and `-=:._`, and at most
    ENTITY_MAX_CHARS of them.
    """
    if len(name) > ENTITY_MAX_CHARS or not _NAMED_ENTITY.match(name):
        raise InvalidTopicName(f"{_shown(name)} is not a valid name of a {what}", topic=_shown(name))


def parse_namespace(text: str) -> tuple[str, str]:
    """`(tenant, namespace)` of `tenant/namespace`; InvalidTopicName otherwise."""
    tenant, slash, namespace = text.partition("/")
    if not slash:
        raise InvalidTopicName(f"{_shown(text)} is not <tenant>/<namespace>", topic=_shown(text))
    check_named_entity("tenant", tenant)
    check_named_entity("namespace", namespace)
    return tenant, namespace


def _check_local_name(name: str) -> None:
    if not name:
        raise InvalidTopicName("the topic name is empty")
    if "/" in name:
        raise InvalidTopicName(f"the topic name {_shown(name)} holds a slash: remove it", topic=_shown(name))
    if name.isascii() and name.isprintable():
        return  # most names: a look at each character costs more than the rest of the parsing
    for character in name:
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise InvalidTopicName(
                f"the topic name {_shown(name)} holds a control character: remove it", topic=_shown(name)
            )


def _shown(text: str) -> str:
    """`text` for an error message: short, and without what cannot be printed."""
    return ascii(text if len(text) <= 200 else text[:200] + "…")
