"""A service of the internal RPC for tests: every role may call everything."""

from collections.abc import Container

from magnetar.runtime.rpc.connection import RpcService


class OpenService(RpcService):
    def may_call(self, role: str, method: str) -> bool:
        return True

    def operations_of(self, role: str) -> Container[int]:
        return range(256)
