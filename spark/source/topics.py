"""Which topics a read has: those that are named, or those of a namespace whose names match a pattern."""

import json
import re
from urllib.parse import quote

from ...bulk.access import ask_admin
from ...protocol.errors import ClusterError, InvalidConfiguration
from ...protocol.plain_values import is_list
from ...protocol.topics import TopicName
from .options import ReadOptions

PERSISTENT_PREFIX = "persistent://"
NAMESPACE_DEFAULT = "public/default"


async def topics_of(options: ReadOptions) -> list[str]:
    """Full names, sorted, a partitioned topic once. Raises InvalidConfiguration for a pattern that is none."""
    if options.pattern is None:
        return list(options.topics)
    namespace, pattern = _namespace_and_names(options.pattern)
    path = "/".join(quote(part, safe="") for part in namespace.split("/"))
    asked = f"/admin/v2/namespaces/{path}/topics?mode=PERSISTENT"
    url = f"{options.admin_url.rstrip('/')}{asked}"
    try:
        listed = json.loads(await ask_admin(options.admin_url, asked))
    except ValueError as error:
        raise ClusterError(f"{url} does not answer with JSON: {error}") from error
    if not is_list(listed):
        raise ClusterError(f"{url} does not answer with a list of topics")
    names = {TopicName.parse(str(name)).without_partition().full for name in listed}
    return sorted(name for name in names if pattern.fullmatch(name.rpartition("/")[2]))


def _namespace_and_names(pattern: str) -> tuple[str, "re.Pattern[str]"]:
    """The namespace that a pattern names literally, and what it says of names in it."""
    parts = pattern.removeprefix(PERSISTENT_PREFIX).split("/", 2)
    if len(parts) == 2 or not all(parts):
        raise InvalidConfiguration(
            f"topicsPattern must be tenant/namespace/pattern or a pattern alone, not {pattern!r}"
        )
    namespace = "/".join(parts[:2]) if len(parts) == 3 else NAMESPACE_DEFAULT
    try:
        return namespace, re.compile(parts[-1])
    except re.error as error:
        raise InvalidConfiguration(f"topicsPattern {pattern!r} is no regular expression: {error}") from error
