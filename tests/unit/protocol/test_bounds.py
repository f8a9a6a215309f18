"""The table of bounds: it has every field that a client can fill at will, and what exceeds a bound is refused."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from magnetar.actors.broker.service import COMMAND_FAMILIES
from magnetar.protocol.bounds import BOUNDS, AtUse, ListBound, NumbersBound, TextBound, check_command, check_text
from magnetar.protocol.errors import InvalidTopicName, NotAllowedError
from magnetar.protocol.frames import FIELD_OF_TYPE
from magnetar.protocol.pulsar_pb2 import BaseCommand
from magnetar.protocol.topics import ENTITY_MAX_CHARS, check_named_entity
from magnetar.runtime.settings.declarations import Settings

TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
ROWS = [(kind, path) for kind, rows in BOUNDS.items() for path in rows]
EARLY = [(kind, path) for kind, path in ROWS if not isinstance(BOUNDS[kind][path], AtUse)]


def descriptor_of(kind: int) -> Any:
    return BaseCommand.DESCRIPTOR.fields_by_name[FIELD_OF_TYPE[kind]].message_type


def fields(descriptor: Any, path: str = "", above: tuple[str, ...] = ()) -> Iterator[str]:
    """What a client can make as large as it likes. Texts of the members of a list count with their list.

    A record within a record of the same kind, such as the id of a first chunk, is not read by brokers.
    """
    for field in descriptor.fields:
        name, nested = f"{path}{field.name}", field.message_type
        if field.is_repeated or field.type in TEXTS:
            yield name
        if nested is not None and nested.name not in above:
            inner = fields(nested, f"{name}.", (*above, nested.name))
            yield from (one for one in inner if not field.is_repeated or one.endswith("ack_set"))


def large(kind: int, path: str, *, over: int) -> Any:
    """A command whose field has as much as it may, and `over` more."""
    bound, command = BOUNDS[kind][path], getattr(BaseCommand(), FIELD_OF_TYPE[kind])
    *parents, last = path.split(".")
    content = command
    for name in parents:
        content = getattr(content, name)
    field = content.DESCRIPTOR.fields_by_name[last]
    if isinstance(bound, TextBound):
        size = bound.bytes_max + over
        setattr(content, last, "x" * size if field.type == FieldDescriptor.TYPE_STRING else b"x" * size)
    elif isinstance(bound, NumbersBound):
        getattr(content, last).extend([1] * (bound.count_max + over))
    else:
        assert isinstance(bound, ListBound)
        for _ in range(bound.count_max + over):
            getattr(content, last).add(**_member(field))
    return command


def _member(field: FieldDescriptor) -> dict[str, Any]:
    return {"start": 0, "end": 1} if field.message_type.name == "IntRange" else {"key": "k", "value": "v"}


def test_every_command_that_a_broker_handles_has_its_bounds() -> None:
    link: Any = SimpleNamespace(host=SimpleNamespace(settings=Settings()))
    handled = {kind for make in COMMAND_FAMILIES for kind in make(link).handlers()}
    assert handled | {BaseCommand.CONNECT, BaseCommand.PING, BaseCommand.PONG} == set(BOUNDS)


@pytest.mark.parametrize("kind", BOUNDS, ids=FIELD_OF_TYPE.get)
def test_every_text_and_every_list_of_a_command_has_a_bound(kind: int) -> None:
    assert set(BOUNDS[kind]) == set(fields(descriptor_of(kind)))


@pytest.mark.parametrize(("kind", "path"), EARLY, ids=lambda one: FIELD_OF_TYPE.get(one, one))
def test_what_is_at_its_bound_passes_and_what_is_over_it_does_not(kind: int, path: str) -> None:
    check_command(kind, large(kind, path, over=0))
    with pytest.raises(NotAllowedError, match=path.split(".")[-1]):
        check_command(kind, large(kind, path, over=1))


def test_a_list_of_few_but_large_members_is_refused() -> None:
    command = BaseCommand().producer
    command.metadata.add(key="k", value="v" * (64 << 10))
    with pytest.raises(NotAllowedError, match="metadata has 65543 bytes, more than 65536"):
        check_command(BaseCommand.PRODUCER, command)


def test_a_text_counts_in_bytes() -> None:
    check_text("the name", "ü" * 5, 10)
    with pytest.raises(NotAllowedError, match="the name has 12 bytes, more than 10: shorten it"):
        check_text("the name", "ü" * 6, 10)


def test_names_of_tenants_and_namespaces_have_a_bound() -> None:
    check_named_entity("tenant", "t" * ENTITY_MAX_CHARS)
    with pytest.raises(InvalidTopicName):
        check_named_entity("tenant", "t" * (ENTITY_MAX_CHARS + 1))
