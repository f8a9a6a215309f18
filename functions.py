"""The official client's module of Pulsar Functions, which do not exist here: each class raises OperationNotSupported
when it is used.
"""

from .client.core.absent import Absent, absent

Context: Absent = absent("Context")
Function: Absent = absent("Function")
IdentitySerDe: Absent = absent("IdentitySerDe")
PickleSerDe: Absent = absent("PickleSerDe")
SerDe: Absent = absent("SerDe")

__all__ = ["Context", "Function", "IdentitySerDe", "PickleSerDe", "SerDe"]
