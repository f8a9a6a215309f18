"""Commands of the properties of namespaces and topics."""

from .arguments import NAMESPACE, TOPIC, Argument, ArgumentPlace, option, pairs
from .command import Command
from .paths import NAMESPACE_PATH, TOPIC_PATH

_NAMESPACE_PATH = f"{NAMESPACE_PATH}/properties"
_ONE_PATH = NAMESPACE_PATH + "/property/{property}"
_TOPIC_PATH = f"{TOPIC_PATH}/properties"
_KEY = Argument("property", "The name of the property.", ("-k", "--key"))
_PAIRS = Argument("properties", "As name=value, several with commas.", ("-p", "--property"), ArgumentPlace.BODY, pairs)

NAMESPACE_PROPERTIES = (
    Command("namespaces", "get-properties", "Show its properties.", "GET", _NAMESPACE_PATH, (NAMESPACE,)),
    Command("namespaces", "set-properties", "Add properties.", "PUT", _NAMESPACE_PATH, (NAMESPACE, _PAIRS)),
    Command("namespaces", "clear-properties", "Remove all properties.", "DELETE", _NAMESPACE_PATH, (NAMESPACE,)),
    Command("namespaces", "get-property", "Show one property.", "GET", _ONE_PATH, (NAMESPACE, _KEY), answers_text=True),
    Command(
        "namespaces",
        "set-property",
        "Set one property.",
        "PUT",
        _ONE_PATH + "/{text}",
        (NAMESPACE, _KEY, Argument("text", "Its text.", ("-v", "--value"))),
    ),
    Command(
        "namespaces",
        "remove-property",
        "Remove one property.",
        "DELETE",
        _ONE_PATH,
        (NAMESPACE, _KEY),
        answers_text=True,
    ),
)
TOPIC_PROPERTIES = (
    Command("topics", "get-properties", "Show its properties.", "GET", _TOPIC_PATH, (TOPIC,)),
    Command("topics", "update-properties", "Add properties.", "PUT", _TOPIC_PATH, (TOPIC, _PAIRS)),
    Command(
        "topics",
        "remove-properties",
        "Remove a property.",
        "DELETE",
        _TOPIC_PATH,
        (TOPIC, option("key", "-k --key", "The name of the property.", required=True)),
    ),
)
