"""Names in paths are encoded and decoded as Pulsar's tools and brokers do it."""

import pytest

from magnetar.protocol.path_encoding import PathEncoding, encoding_of

NAMES = ["plain", "a b", "a+b", "100%", "a%2Fb", "a%25b", "{x}", "ü", "日本", "a?b", "a#b", "a&b=c", "a;b", "~a", "a/b"]


@pytest.mark.parametrize("encoding", PathEncoding)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_encoded_is_decoded_to_the_same_name(encoding: PathEncoding, name: str) -> None:
    part = encoding.encode(name)
    assert encoding.decode(part) == name
    assert not set("/?#{} ") & set(part)


@pytest.mark.parametrize(
    ("parameter", "sent", "name"),
    [
        ("topic", "a+b", "a b"),
        ("topic", "a%2Bb", "a+b"),
        ("topic", "a%20b", "a b"),
        ("topic", "a%252Fb", "a%2Fb"),
        ("subscription", "a+b", "a b"),
        ("subscription", "a%2Bb", "a b"),
        ("subscription", "a%252Bb", "a+b"),
        ("subscription", "%257Bx%257D", "{x}"),
        ("property", "a+b", "a+b"),
        ("property", "a%20b", "a b"),
        ("subscription_name", "a+b", "a+b"),
    ],
)
def test_each_parameter_is_decoded_as_pulsars_broker_does(parameter: str, sent: str, name: str) -> None:
    assert encoding_of(parameter).decode(sent) == name


@pytest.mark.parametrize(
    ("parameter", "sent"), [("topic", "100%"), ("topic", "%zz"), ("topic", "%ff"), ("subscription", "100%25")]
)
def test_what_is_no_encoding_is_refused(parameter: str, sent: str) -> None:
    with pytest.raises(ValueError):
        encoding_of(parameter).decode(sent)
