"""Names of the official Python client whose features do not exist here: each says why when it is used.

`import magnetar as pulsar` finds every public name of the official package. A program therefore fails where it asks for
a missing feature, with OperationNotSupported, and not at its import.
"""

from typing import NoReturn

from ...protocol.errors import OperationNotSupported


class Absent:
    """Stands for a class that does not exist. To call it, subclass it or read an attribute raises
    OperationNotSupported. It may stand in annotations, and nothing is an instance of it.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = f"Not supported: {reason}."
        self._reason = reason

    def __repr__(self) -> str:
        return f"<{self.__name__}, which is not supported>"

    def __call__(self, *arguments: object, **options: object) -> NoReturn:
        raise OperationNotSupported(f"{self.__name__} is not supported: {self._reason}")

    def __mro_entries__(self, bases: tuple[object, ...]) -> NoReturn:
        """Python asks for this when a class names it as a base."""
        raise OperationNotSupported(f"{self.__name__} is not supported: {self._reason}")

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # Python itself looks for such names
            raise AttributeError(f"{self.__name__!r} has no attribute {name!r}")
        self()

    def __instancecheck__(self, value: object) -> bool:
        return False

    def __or__(self, other: object) -> type:
        return object

    __ror__ = __or__


FAILOVER = "a client has one cluster. Pass its service URL"
LOGGING = "the client logs to the standard `logging`, where handlers and levels are set"
FUNCTIONS = "Pulsar Functions do not exist here. Use a Ray task or actor with a consumer and a producer"
RECORDS = "a schema takes a dataclass, a pydantic model, or a Record of the official package's pulsar.schema"

REASONS = {
    "AuthenticationAthenz": "role tokens of Athenz are not taken. Use a token",
    "AuthenticationOauth2": "get the token yourself, in a function that is passed to AuthenticationToken",
    "AutoClusterFailover": FAILOVER,
    "ServiceInfo": FAILOVER,
    "ServiceInfoProvider": FAILOVER,
    "ConsoleLogger": LOGGING,
    "FileLogger": LOGGING,
    "LoggerLevel": LOGGING,
    "Context": FUNCTIONS,
    "Function": FUNCTIONS,
    "IdentitySerDe": FUNCTIONS,
    "PickleSerDe": FUNCTIONS,
    "SerDe": FUNCTIONS,
    "BatchReceivePolicy": "it is the native half of ConsumerBatchReceivePolicy. Use that",
    "DeadLetterPolicyBuilder": "it is the native half of ConsumerDeadLetterPolicy. Use that",
    "KeySharedPolicy": "it is the native half of ConsumerKeySharedPolicy. Use that",
    "MessageBatch": "entries are opened by consumers and readers only",
    **dict.fromkeys(
        (
            *("Array", "Boolean", "Bytes", "CustomEnum", "Double", "Field", "Float", "Integer", "Long", "Map"),
            *("Null", "Record", "String"),
        ),
        RECORDS,
    ),
}
"""Why each does not exist, and what to do."""

_ABSENT = {name: Absent(name, reason) for name, reason in REASONS.items()}


def absent(name: str) -> Absent:
    """The stand-in for a name of `REASONS`."""
    return _ABSENT[name]
