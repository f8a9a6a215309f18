"""What moves as a whole, by the name under which brokers report it and the coordinator moves it."""

from ...protocol.system_topics import is_system_topic


def unit_of(topic: str) -> str | None:
    """The unit of a partition or plain topic: itself. None: it never moves for its load (a topic of the cluster's own,
    such as that of a broker's health check)."""
    return None if is_system_topic(topic) else topic
