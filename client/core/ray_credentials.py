"""The credential of a client that finds the cluster through Ray: a token from the coordinator's actor.

It is asked for before each connection, so it is never stored. A cluster that asks for no credentials gives none.
"""

from typing import TypedDict, cast

from ...protocol.errors import ConnectError
from ...protocol.names import COORDINATOR_ACTOR, RAY_METHOD
from ...runtime.ray_calls import ask, find_actor
from .authentication import Authentication, SentCredential

ANSWER_TIMEOUT_S = 10.0


class TokenOfRay(TypedDict):
    """What the client takes from the answer of the coordinator's actor."""

    token: str


class RayAuthentication(Authentication):
    """See the module."""

    method_name = RAY_METHOD

    def auth_data(self) -> bytes:
        """Return the token, empty where the cluster gives none.

        Returns:
            A token of ASCII, which holds for some minutes.

        Raises:
            ConnectError: If the coordinator does not answer, or this process is in no Ray.
        """
        import ray

        if not ray.is_initialized():  # else Ray would start one: also when a client connects again at a program's end
            raise ConnectError("this process has left its Ray, so it gets no token")
        try:
            found = cast("TokenOfRay", ask(find_actor(COORDINATOR_ACTOR).client_information(), ANSWER_TIMEOUT_S))
        except Exception as error:  # Ray raises a different class for every way of not being there
            raise ConnectError(f"the coordinator gives no token: {error}") from error
        return found["token"].encode()

    async def credential(self) -> SentCredential | None:
        """Get what to send now. The client calls it.

        Returns:
            The token; None where the cluster gives none.

        Raises:
            ConnectError: If the coordinator does not answer.
        """
        found = await super().credential()
        return found if found is not None and found.data else None
