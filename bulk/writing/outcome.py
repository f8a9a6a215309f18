"""The two ends of a write of many tasks, in its driver: it creates the topic, and judges what the tasks did."""

from collections.abc import Sequence
from typing import NamedTuple

from ...client.blocking.client import Client
from ...client.schemas.schema import SchemaInfo
from ...protocol.errors import InvalidConfiguration, NotAllowedError
from .publisher import EncodedRecords, WritePlan
from .task_writer import Written


class TopicWrite(NamedTuple):
    """What a write has done."""

    rows: int
    """Rows that this call has stored."""
    known: int
    """Rows that the topic had already, from an earlier call or from an attempt that failed."""
    size_bytes: int
    """Payloads of the rows that this call has stored."""


def create_topic(service_url: str, topic: str, info: SchemaInfo | None) -> None:
    """Have the broker create the topic, and take its schema, before tasks do so at the same moment."""
    with Client(service_url) as client:
        client.create_producer(topic, schema=None if info is None else EncodedRecords(info)).close()


def outcome_of(topic: str, plan: WritePlan, written: Sequence[Written]) -> TopicWrite:
    """What all tasks have done together.

    Raises InvalidConfiguration if the topic has other rows of this name, NotAllowedError if the topic does not
    deduplicate and a name was given.
    """
    for one in written:
        if one.foreign is not None:
            raise InvalidConfiguration(
                f"{topic} has other rows than these: {one.foreign}. Another result was written under the name "
                f"{plan.producer_name}, or by another number of tasks, or the rows came in another order. Choose "
                "another producer_name"
            )
    for one in written:
        if one.unjudged is not None:
            raise NotAllowedError(
                f"deduplication is off for {topic}: the rows are stored, but a repetition stores them again. Set the "
                "policy deduplication of its namespace, or leave producer_name out"
            )
    return TopicWrite(
        sum(one.rows for one in written), sum(one.known for one in written), sum(one.size_bytes for one in written)
    )
