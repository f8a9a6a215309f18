"""Services of the internal RPC for tests: every role may call everything, declared or not."""

from collections.abc import Container, Mapping

from magnetar.runtime.rpc.connection import RpcService
from magnetar.runtime.rpc.contract import Handler, Method


class Undeclared(Method):
    """A handler that only a test knows takes whatever it is given."""

    notification = False
    needs_caller = False

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


class PartialService(OpenService):
    """Has some of the methods of its contract, under their names."""

    def handler(self, method: str) -> Handler | None:
        return getattr(self, method, None) if method in self.contract.methods else None
