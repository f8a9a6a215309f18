"""A service of the internal RPC for tests: every role may call everything, declared or not."""

from collections.abc import Container, Mapping

from magnetar.runtime.rpc.connection import RpcService
from magnetar.runtime.rpc.contract import Method


class Undeclared(Method):
    """A handler that only a test knows takes whatever it is given."""

    def __init__(self) -> None: ...

    def check(self, arguments: Mapping[str, object]) -> dict[str, object]:
        return dict(arguments)


class OpenService(RpcService):
    def declared(self, method: str) -> Method | None:
        return super().declared(method) or Undeclared()

    def may_call(self, role: str, declared: Method) -> bool:
        return True

    def operations_of(self, role: str) -> Container[int]:
        return range(256)
