"""Contracts: what one service offers over the internal RPC, declared once and used by both ends.

A contract is a class whose methods are declared with `@method(roles)` and have no body. Their arguments are
keyword-only, and they and the answer are of types that can travel (see `shapes`):

    class CoordinatorContract(Contract):
        @method(BROKER | ADMIN)
        async def assign(self, *, topic: str, create: bool | None = None) -> Owner: ...

The *caller* makes one with a way to call, such as `RpcConnection.call`, and calls its methods. The name of the method
and the arguments that were given travel; the answer is checked and returned as its type. A declaration that is not
`async` is a notification: it returns at once, and nothing comes back.

The *server* names the contract (`RpcService.contract`) and implements each method as `async def rpc_<name>(self,
connection, …)`, with the same arguments and answer, in one class or in groups. `disagreements` says where it does not.
A call of an undeclared method, by a role that is not named, or with other arguments gets a typed error. It never
reaches the handler.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, TypeVar, cast, get_type_hints

from ...protocol.errors import ProtocolError
from .shapes import Misfit, Shape, shape_of

Roles = frozenset[str]
Declared = TypeVar("Declared", bound=Callable[..., object])

_METHOD = "__rpc_method__"
HANDLER_PREFIX = "rpc_"


class Method:
    """One declared method."""

    def __init__(self, declared: Callable[..., object], roles: Roles, timeout_s: float | None) -> None:
        self.name = declared.__name__
        self.roles = roles
        self.timeout_s = timeout_s
        """How long a caller waits for the answer; None: as long as the way to call says."""
        self.notification = not inspect.iscoroutinefunction(declared)
        self.signature = inspect.signature(declared)
        self._declared = declared
        wrong = [name for name, one in self._parameters().items() if one.kind is not one.KEYWORD_ONLY]
        if wrong:
            raise TypeError(f"{self.name} declares {wrong[0]}, which is not keyword-only: it travels by name")

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
        """The types of the arguments by name, and of the answer as `return`."""
        return get_type_hints(self._declared)

    @functools.cached_property
    def _shapes(self) -> dict[str, Shape]:
        return {name: shape_of(declared) for name, declared in self.types().items() if name != "return"}

    @functools.cached_property
    def _required(self) -> list[str]:
        return [name for name, one in self._parameters().items() if one.default is one.empty]

    @functools.cached_property
    def _answer_shape(self) -> Shape:
        return shape_of(self.types()["return"])

    def _parameters(self) -> dict[str, inspect.Parameter]:
        return dict(list(self.signature.parameters.items())[1:])


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
        declared = (getattr(getattr(cls, name), _METHOD, None) for name in dir(cls))
        cls.methods = {one.name: one for one in declared if isinstance(one, Method)}

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


def handlers_in(*groups: type) -> dict[str, Callable[..., object]]:
    """The handlers of these classes by the name of their method, without `rpc_`, sorted within each class."""
    return {
        name.removeprefix(HANDLER_PREFIX): getattr(group, name)
        for group in groups
        for name in dir(group)
        if name.startswith(HANDLER_PREFIX)
    }


def disagreements(contract: type[Contract], *groups: type) -> list[str]:
    """Where the handlers of these classes are not what the contract declares: a line each, none if all agree."""
    handlers = handlers_in(*groups)
    methods = contract.methods
    found = [f"rpc_{name} is not declared" for name in handlers if name not in methods]
    found += [f"{name} has no handler" for name in methods if name not in handlers]
    for name in methods.keys() & handlers.keys():
        found += [f"rpc_{name} {what}" for what in _differences(methods[name], handlers[name])]
    return sorted(found)


def _differences(declared: Method, handler: Callable[..., object]) -> list[str]:
    found: list[str] = []
    if not inspect.iscoroutinefunction(handler):
        found.append("is not async")
    hints = get_type_hints(handler)
    hints.pop("connection", None)
    if hints != declared.types():
        found.append(f"is of {hints}, but declared are {declared.types()}")
    takes = {one.name: one.default for one in list(inspect.signature(handler).parameters.values())[2:]}
    wanted = {one.name: one.default for one in list(declared.signature.parameters.values())[1:]}
    if takes != wanted:
        found.append(f"takes {takes}, but declared are {wanted}")
    return found
