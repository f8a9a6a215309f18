"""What holds for the letters of one consumer: names of topics and producers, limits, properties. Pure.

Names and properties are those of Pulsar's Java client. A copy keeps the message's own properties and gets those below,
in the order of their names. What says where the message came from is set once, by the first copy.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...protocol.errors import InvalidConfiguration
from ...protocol.topics import TopicName
from ..consuming.message import Message
from ..core.configuration import (
    ConsumerConfiguration,
    DeadLetterProducerContext,
    ProducerConfiguration,
    ProducerCustomizer,
)

REAL_TOPIC = "REAL_TOPIC"
"""The topic that the message was first published to, without partition."""
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
"""The text of its first id."""
ORIGIN_MESSAGE_ID_BEFORE = "ORIGIN_MESSAGE_IDY_TIME"
"""The same. Older Java clients wrote this name by mistake, and newer ones write both."""
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
RECONSUMETIMES = "RECONSUMETIMES"
"""How often the message was stored for another attempt, in decimal."""
DELAY_TIME = "DELAY_TIME"
"""Milliseconds until that attempt."""

RECONSUME_TIMES_MAX = 16
"""Attempts without a dead letter policy."""
RANDOM_NAME_LETTERS = 5


@dataclass(frozen=True)
class LetterPolicy:
    """See the module."""

    input_topic: str | None
    """The first topic of the consumer; None for a pattern."""
    subscription: str
    consumer_name: str
    max_redeliver_count: int
    retry_topic: str | None
    """None: retry letters are off."""
    dead_letter_topic: str | None
    """None: each topic has its own, by the default name."""
    initial_subscription_name: str | None
    dead_letter_customizer: ProducerCustomizer | None
    retry_customizer: ProducerCustomizer | None

    @staticmethod
    def of(configuration: ConsumerConfiguration, random_name: Callable[[], str]) -> "LetterPolicy | None":
        """What a consumer is configured for; None without letters. Raises InvalidTopicName."""
        dead, retry_topic = configuration.dead_letter_policy, None
        if dead is None and not configuration.enable_retry:
            return None
        dead_letter_topic = dead.dead_letter_topic if dead is not None else None
        subscription = configuration.subscription_name
        first = _first(configuration)
        if configuration.enable_retry and first is not None:
            retry_topic = TopicName.parse(
                configuration.retry_letter_topic or default_retry_topic(first, subscription)
            ).full
            dead_letter_topic = dead_letter_topic or default_dead_letter_topic(first, subscription)
        if dead_letter_topic is not None:
            dead_letter_topic = TopicName.parse(dead_letter_topic).full
        return LetterPolicy(
            input_topic=first,
            subscription=subscription,
            consumer_name=configuration.consumer_name or random_name(),
            max_redeliver_count=dead.max_redeliver_count if dead is not None else RECONSUME_TIMES_MAX,
            retry_topic=retry_topic,
            dead_letter_topic=dead_letter_topic,
            initial_subscription_name=dead.initial_subscription_name if dead is not None else None,
            dead_letter_customizer=configuration.dead_letter_producer_customizer,
            retry_customizer=configuration.retry_letter_producer_customizer,
        )

    def dead_letter_topic_of(self, topic: str) -> str:
        """Where messages of a topic or partition end."""
        if self.dead_letter_topic is not None:
            return self.dead_letter_topic
        return default_dead_letter_topic(TopicName.parse(topic).partitioned_name, self.subscription)

    def dead_letter_producer(self, source: str, random_name: str) -> ProducerConfiguration:
        """How to publish the dead letters of a topic. Raises what the customizer raises, InvalidConfiguration."""
        topic = TopicName.parse(source).partitioned_name
        if topic == self.retry_topic and self.input_topic is not None:
            topic = self.input_topic
        name = f"{topic}-{self.subscription}-{self.consumer_name}-{random_name}-DLQ"
        options: dict[str, object] = {**_defaults(self.dead_letter_topic_of(topic)), "producer_name": name}
        if self.initial_subscription_name is not None:
            options["initial_subscription_name"] = self.initial_subscription_name
        default = default_dead_letter_topic(topic, self.subscription)
        return self._customized(options, self.dead_letter_customizer, default, topic)

    def retry_producer(self) -> ProducerConfiguration:
        """How to publish to the retry letter topic. Raises what the customizer raises, InvalidConfiguration."""
        topic = self.input_topic
        assert self.retry_topic is not None and topic is not None
        default = default_retry_topic(topic, self.subscription)
        return self._customized(_defaults(self.retry_topic), self.retry_customizer, default, topic)

    def _customized(
        self, options: dict[str, object], customizer: ProducerCustomizer | None, default: str, topic: str
    ) -> ProducerConfiguration:
        if customizer is not None:
            where = options["topic"]
            customizer(DeadLetterProducerContext(default, topic, self.subscription, self.consumer_name), options)
            if options.get("topic") != where:
                raise InvalidConfiguration(
                    f"the customizer of a letter producer changed its topic {where}: name the topic when you subscribe"
                )
        return ProducerConfiguration.of(options)


def default_retry_topic(topic: str, subscription: str) -> str:
    """`<topic>-<subscription>-RETRY`."""
    return f"{topic}-{subscription}-RETRY"


def default_dead_letter_topic(topic: str, subscription: str) -> str:
    """`<topic>-<subscription>-DLQ`."""
    return f"{topic}-{subscription}-DLQ"


def letter_properties(message: Message, subscription: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The properties of a copy: the message's own, where it came from, and `more`."""
    message_id = message.message_id()
    origin = {
        REAL_TOPIC: TopicName.parse(message.topic_name()).partitioned_name,
        ORIGIN_MESSAGE_ID_BEFORE: message_id.text,
        ORIGIN_MESSAGE_ID: message_id.text,
        REAL_SUBSCRIPTION: subscription,
    }
    return dict(sorted({**origin, **message.properties(), **(more or {})}.items()))


def reconsume_times(properties: Mapping[str, str]) -> int:
    """How often a message was stored for another attempt, as its properties say; 0 if that is no number."""
    text = properties.get(RECONSUMETIMES, "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _first(configuration: ConsumerConfiguration) -> str | None:
    topic = configuration.topic
    if isinstance(topic, re.Pattern):
        return None
    return TopicName.parse(topic if isinstance(topic, str) else topic[0]).partitioned_name


def _defaults(topic: str) -> dict[str, object]:
    return {"topic": topic, "batching_enabled": False, "chunking_enabled": True, "block_if_queue_full": False}
