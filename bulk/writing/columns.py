"""The columns of a frame that make messages, and what types they may have."""

from collections.abc import Collection, Mapping

from ...protocol.errors import InvalidConfiguration

VALUE, TOPIC, KEY, ORDERING_KEY = "value", "__topic", "__key", "__orderingKey"
PROPERTIES, EVENT_TIME = "__messageProperties", "__eventTime"
TYPES = {
    VALUE: ("binary", "string"),
    TOPIC: ("string",),
    KEY: ("string",),
    ORDERING_KEY: ("string", "binary"),
    PROPERTIES: ("map<string,string>",),
    EVENT_TIME: ("timestamp", "bigint"),
}
"""By column: the types that it may have, as Spark writes them. A `bigint` is milliseconds since the epoch."""
OF_READS = ("__partition", "__messageId", "__publishTime", "__producerName", "__sequenceId")
"""What only a broker can say. A frame that was read has them, and may be written as it is."""


def check_columns(found: Mapping[str, str], besides: Collection[str] = (), *, typed: bool = False) -> None:
    """Check the columns of a frame.

    Args:
        found: By name: the type, as Spark writes it.
        besides: What may be there, too.
        typed: Whether columns that do not begin with `__` are fields of a record.

    Raises:
        InvalidConfiguration: If they make no messages.
    """
    if typed:
        found = {name: kind for name, kind in found.items() if name.startswith("__")}
    elif VALUE not in found:
        raise InvalidConfiguration(
            f"the frame has no column `value`, but {', '.join(found)}: make one, such as "
            "to_json(struct('*')).alias('value'), or write with a schema"
        )
    for name, kind in found.items():
        if name in TYPES and kind not in TYPES[name]:
            raise InvalidConfiguration(f"the column `{name}` is {kind}, not {' or '.join(TYPES[name])}: cast it")
        if name in TYPES or name in OF_READS or name in besides:
            continue
        if name.startswith("__"):
            raise InvalidConfiguration(
                f"the column `{name}` is none of {', '.join((*TYPES, *OF_READS))}: drop it, or rename it"
            )
        raise InvalidConfiguration(f"the column `{name}` is no part of a message: drop it, or put it into `value`")
