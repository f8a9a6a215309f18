"""Listeners: which address a lookup answers, by the name that a client gives and by the socket that it came to."""

from magnetar.protocol.pulsar_pb2 import CommandLookupTopic

from ..registry import LISTENERS, scenario
from ..stage import Stage

NAMES = [
    ("the internal one", "inside"),
    ("another one", "outside"),
    ("spaces", "  "),
    ("one that does not exist", "nobody"),
    ("a name in other letters", "OUTSIDE"),
    ("two names", "inside,outside"),
]


@scenario(LISTENERS, promises=("30.18",))
def lookups_answer_the_address_of_a_listener(stage: Stage) -> None:
    """LOOKUP without a listener, with each of two, and with names that no listener has."""
    stage.admin("PUT", "/admin/v2/persistent/{ns}/topic")
    peer = stage.peer()
    stage.ask("none", peer, CommandLookupTopic(topic=stage.topic(), authoritative=False))
    for label, name in NAMES:
        request = CommandLookupTopic(topic=stage.topic(), authoritative=False, advertised_listener_name=name)
        stage.ask(label, peer, request)


@scenario(LISTENERS, promises=("30.18",))
def the_admin_answers_the_address_of_a_listener(stage: Stage) -> None:
    """The HTTP lookup with `listenerName`. It names the host of the address, as a lookup of a client does."""
    stage.admin("PUT", "/admin/v2/persistent/{ns}/topic")
    path = "/lookup/v2/topic/persistent/{ns}/topic"
    for label, query in [("none", ""), ("an empty name", "?listenerName="), *_queries()]:
        found = stage.admin("GET", path + query)
        body = found.body if isinstance(found.body, dict) else {}
        stage.note(label, f"{found.status} {stage.names.text(str(body.get('brokerUrl', '')))}")


@scenario(LISTENERS, promises=("31.13",))
def a_client_uses_the_listener_that_it_names(stage: Stage) -> None:
    """The official client and ours publish and read by the internal listener."""
    stage.admin("PUT", "/admin/v2/persistent/{ns}/topic")
    for label, client in [
        ("official", stage.client(listener_name="inside")),
        ("ours", stage.own_client(listener_name="inside")),
    ]:
        consumer = client.subscribe(stage.topic(), label)
        client.create_producer(stage.topic(), f"p-{label}").send(label.encode())
        stage.note(label, consumer.receive(10_000).data())


def _queries() -> list[tuple[str, str]]:
    return [
        ("the internal one", "?listenerName=inside"),
        ("another one", "?listenerName=outside"),
        ("one that does not exist", "?listenerName=nobody"),
    ]
