"""Two calls into Ray, with the types that they really have: handles and answers are made at run time."""

from collections.abc import Callable
from typing import Any


def ask(reference: Any, timeout_s: float | None = None) -> Any:
    """Wait for the answer (or a list of answers) of remote calls. Raises what they raised, GetTimeoutError."""
    import ray

    return ray.get(reference, timeout=timeout_s)


def remote(target: Callable[..., Any], **options: Any) -> Any:
    """A class or function as Ray's actor class or task, with Ray's options; call its `remote`."""
    import ray

    wrapped: Any = ray.remote(target)
    return wrapped.options(**options)
