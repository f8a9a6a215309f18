"""Contracts: what one service offers over the internal RPC, declared once and used by both ends.

A contract is a class whose methods are declared with `@method(roles)` and have no body. Their arguments are
keyword-only, and they and the answer are of types that can travel (see `shapes`):

    class PlacementContract(Contract):
        @method(BROKER | ADMIN)
        async def assign(self, *, topic: str, create: bool | None = None, caller: RpcConnection = CALLER) -> Owner: ...

A contract may consist of parts, from which it inherits. An argument `caller` does not travel: the server puts the
connection there over which the call came.

The *caller* makes one with a way to call, such as `RpcConnection.call`, and calls its methods. The name of the method
and the arguments that were given travel; the answer is checked and returned as its type. A declaration that is not
`async` is a notification: it returns at once, and nothing comes back.

The *server* names the contract (`RpcService.contract`) and has an object for each part of it. The object's class
inherits from the part and overrides its methods, with the same arguments. Their meaning stands in the contract alone.
A class that overrides some, but not all, or with other arguments, is refused where it is defined. `handlers_of`
refuses a method that no object has, and one that two objects have.

A call of an undeclared method, by a role that is not named, or with other arguments gets a typed error. It never
reaches the object.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast, get_type_hints

from ...protocol.errors import ProtocolError
from .shapes import Misfit, Shape, shape_of

if TYPE_CHECKING:
    from .connection import RpcConnection

Roles = frozenset[str]
Declared = TypeVar("Declared", bound=Callable[..., object])

Handler = Callable[..., Awaitable[object]]
"""What serves a method. It takes the arguments by name. That of a notification returns None at once."""

CALLER = cast("RpcConnection", object())
"""The default of an argument `caller`: callers leave it out."""

_METHOD = "__rpc_method__"
CALLER_NAME = "caller"


class Method:
    def __init__(self, declared: Callable[..., object], roles: Roles, timeout_s: float | None) -> None:
        self.name = declared.__name__
        self.roles = roles
        self.timeout_s = timeout_s
        """How long a caller waits for the answer; None: as long as the way to call says."""
        self.notification = not inspect.iscoroutinefunction(declared)
        self.needs_caller = False
        """Whether the server adds the argument `caller`."""
        self._declared = declared
        self._defaults = _defaults(declared)
        """Of the arguments that travel."""
        if self._defaults.get(CALLER_NAME) is CALLER:
            self.needs_caller = True
            del self._defaults[CALLER_NAME]

    def check(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The arguments of a call as their types. Raises ProtocolError for others than declared."""
        checked: dict[str, object] = {}
        for name, value in arguments.items():
            shape = self._shapes.get(name)
            if shape is None:
                raise ProtocolError(f"malformed call: {self.name} has no argument {name[:100]!r}")
            try:
                checked[name] = shape(value)
            except Misfit as error:
                raise ProtocolError(f"malformed call: argument {name} of {self.name} is {error}") from None
        for name in self._required:
            if name not in checked:
                raise ProtocolError(f"malformed call: {self.name} lacks the argument {name}")
        return checked

    def answer(self, value: object) -> object:
        """The answer as its type. Raises ProtocolError for another."""
        try:
            return self._answer_shape(value)
        except Misfit as error:
            raise ProtocolError(f"malformed answer: the answer to {self.name} holds {error}") from None

    def types(self) -> dict[str, object]:
        """The types of the arguments that travel, by name, and of the answer as `return`."""
        found = get_type_hints(self._declared)
        if self.needs_caller:
            del found[CALLER_NAME]
        return found

    def check_handler(self, what: str, handler: Callable[..., object]) -> None:
        """Raise TypeError unless a handler takes the same arguments, and waits or not as it is declared.

        pyright compares the types.
        """
        if _defaults(handler) != _defaults(self._declared):
            raise TypeError(f"{what} does not take the arguments that are declared for it: {_defaults(self._declared)}")
        if inspect.iscoroutinefunction(handler) is self.notification:
            raise TypeError(f"{what} must {'not ' if self.notification else ''}be async, as it is declared")

    @functools.cached_property
    def _shapes(self) -> dict[str, Shape]:
        return {name: shape_of(declared) for name, declared in self.types().items() if name != "return"}

    @functools.cached_property
    def _required(self) -> list[str]:
        return [name for name, default in self._defaults.items() if default is inspect.Parameter.empty]

    @functools.cached_property
    def _answer_shape(self) -> Shape:
        return shape_of(self.types()["return"])


def _defaults(function: Callable[..., object]) -> dict[str, object]:
    """The default of each argument behind `self`. Raises TypeError for one that is not keyword-only."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    for one in parameters:
        if one.kind is not one.KEYWORD_ONLY:
            raise TypeError(f"{function.__qualname__} has the argument {one.name}, which must be keyword-only")
    return {one.name: one.default for one in parameters}


class Contract:
    """See the module. `call(method, **arguments)` carries a call, or a notification, to the other end.

    With `timeout_s`, or for a method that has a timeout of its own, `call` is also given `timeout_s`.
    """

    methods: ClassVar[Mapping[str, Method]] = {}

    def __init__(self, call: Callable[..., object], *, timeout_s: float | None = None) -> None:
        self._call = call
        self._timeout_s = timeout_s

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        inherited: dict[str, Method] = {}
        for part in cls.__bases__:
            for name, one in part.methods.items() if issubclass(part, Contract) else ():
                if inherited.setdefault(name, one) is not one:
                    raise TypeError(f"{cls.__name__} has two parts that declare {name}")
        own = {name: getattr(value, _METHOD) for name, value in vars(cls).items() if hasattr(value, _METHOD)}
        cls.methods = {**inherited, **own}
        cls._check_handlers(inherited)

    @classmethod
    def _check_handlers(cls, inherited: Mapping[str, Method]) -> None:
        missing = [name for name in inherited if hasattr(getattr(cls, name), _METHOD)]
        if missing and len(missing) < len(inherited):
            raise TypeError(f"{cls.__name__} has no handler for {', '.join(missing)}")
        for name in inherited if not missing else ():
            inherited[name].check_handler(f"{cls.__name__}.{name}", getattr(cls, name))

    def carry(self, method: Method, arguments: dict[str, object]) -> object:
        """Hand a call of the method to `call`, and return what that returns."""
        timeout_s = self._timeout_s if self._timeout_s is not None else method.timeout_s
        if timeout_s is None:
            return self._call(method.name, **arguments)
        return self._call(method.name, timeout_s=timeout_s, **arguments)


def method(roles: Roles, *, timeout_s: float | None = None) -> Callable[[Declared], Declared]:
    """Declare a method of a contract, and the roles whose nodes may call it."""

    def declare(declared: Declared) -> Declared:
        found = Method(declared, roles, timeout_s)

        @functools.wraps(declared)
        async def asked(self: Contract, **arguments: object) -> object:
            return found.answer(await cast("Awaitable[object]", self.carry(found, arguments)))

        @functools.wraps(declared)
        def told(self: Contract, **arguments: object) -> None:
            self.carry(found, arguments)

        made = told if found.notification else asked
        setattr(made, _METHOD, found)
        return cast(Declared, made)

    return declare


def handlers_of(contract: type[Contract], *objects: Contract) -> dict[str, Handler]:
    """The handlers of all methods of a contract, by name. Each object serves a part of it.

    Raises TypeError for a method that no object has, that two have, or that the contract does not declare.
    """
    handlers: dict[str, Handler] = {}
    for one in objects:
        what = type(one).__name__
        for name, declared in one.methods.items():
            if contract.methods.get(name) is not declared:
                raise TypeError(f"{contract.__name__} does not declare {name}, which {what} has")
            if name in handlers:
                raise TypeError(f"{what} and another object have {name}")
            handlers[name] = getattr(one, name)
            if hasattr(handlers[name], _METHOD):
                raise TypeError(f"{what} has no handler for {name}")
    missing = contract.methods.keys() - handlers.keys()
    if missing:
        raise TypeError(f"no object has {', '.join(sorted(missing))} of {contract.__name__}")
    return handlers
