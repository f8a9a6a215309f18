"""Calls of actors without Ray: what is sent to the handle that Ray gave."""

import pickle
from types import SimpleNamespace

import pytest

from magnetar.runtime.ray_calls import ActorCalls


def counter() -> ActorCalls:
    """An actor whose one method, `distance`, returns how far a number is from 0."""
    return ActorCalls(SimpleNamespace(distance=SimpleNamespace(remote=abs)))


def test_a_call_is_sent_to_the_method_of_that_name() -> None:
    assert counter().distance(-3) == 3


@pytest.mark.parametrize("name", ["other", "_distance", "__setstate__"])
def test_a_method_that_the_actor_does_not_have_is_an_error(name: str) -> None:
    with pytest.raises(AttributeError):
        getattr(counter(), name)


def test_another_process_may_call_the_actor() -> None:
    assert pickle.loads(pickle.dumps(counter())).distance(-3) == 3
