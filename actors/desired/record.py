"""The metadata record of what should run: which brokers and bookies, and which of them are being drained.

`magnetar start` writes it for a new cluster. `scale`, `drain`, `undrain` and a later `start` with numbers change it.
The supervisor compares it with what runs. Everything here is pure: each change returns a new record, or raises.

States of one member, by this record:

    not named ──scale up──▶ wanted ──drain, scale down──▶ draining ──it is empty, and its process has ended──▶ not named
                              ▲                              │
                              └──────undrain, scale up───────┘

Numbers of brokers are used again, lowest first: a broker keeps nothing. Numbers of bookies are never used again
(`bookies_ever`). So no directory, no stale process and no old ledger record of a retired bookie can be taken for those
of a new one.

Keys that this version does not know are kept, so that a newer version may add some.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from ...protocol.errors import MetadataError, NoSuchKey, NotAllowedError, ProtocolError
from ...protocol.names import bookie_id, broker_id
from ...protocol.plain_values import is_list, is_text_map
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.record_kinds import NAMES_NO_LEDGERS, RecordKind
from ...storage.metadata.store import pack, unpack

MEMBERS_MAX = 100_000
"""Of one role. More is a damaged record or a slip of the operator's finger."""


@dataclass(frozen=True)
class DesiredState:
    """See the module. Numbers ascend and occur once. `draining` names members by their ids, such as `broker-2`."""

    brokers: tuple[int, ...]
    bookies: tuple[int, ...]
    draining: frozenset[str] = frozenset()
    bookies_ever: int = 0
    """The highest number that a bookie ever had."""
    others: Mapping[str, object] = field(default_factory=dict[str, object])
    """What a newer version keeps here."""

    def __post_init__(self) -> None:
        for numbers in (self.brokers, self.bookies):
            if list(numbers) != sorted(set(numbers)) or (numbers and numbers[0] < 1) or len(numbers) > MEMBERS_MAX:
                raise MetadataError(f"the desired state names impossible members: {numbers!r:.200}")
        if not self.draining <= {*self.broker_ids, *self.bookie_ids}:
            raise MetadataError(f"the desired state drains unknown members: {sorted(self.draining)!r:.200}")
        if self.bookies_ever < max(self.bookies, default=0):
            object.__setattr__(self, "bookies_ever", max(self.bookies))

    @classmethod
    def of(cls, brokers: int, bookies: int) -> "DesiredState":
        """That of a new cluster: members 1 to n of each role."""
        return cls(tuple(range(1, brokers + 1)), tuple(range(1, bookies + 1)))

    # -- who is named --------------------------------------------------------------------------------------------------

    @property
    def broker_ids(self) -> list[str]:
        """All brokers that should run, those that are draining too."""
        return [broker_id(number) for number in self.brokers]

    @property
    def bookie_ids(self) -> list[str]:
        """All bookies that should run, those that are draining too."""
        return [bookie_id(number) for number in self.bookies]

    @property
    def wanted_brokers(self) -> list[str]:
        """Those that are not draining."""
        return [one for one in self.broker_ids if one not in self.draining]

    @property
    def wanted_bookies(self) -> list[str]:
        """Those that are not draining."""
        return [one for one in self.bookie_ids if one not in self.draining]

    @property
    def draining_bookies(self) -> list[str]:
        """Those that give their ledgers up."""
        return [one for one in self.bookie_ids if one in self.draining]

    def __contains__(self, member: object) -> bool:
        return member in self.broker_ids or member in self.bookie_ids

    # -- changes -------------------------------------------------------------------------------------------------------

    def scaled(self, brokers: int | None, bookies: int | None, bookies_needed: int) -> "DesiredState":
        """As many members as asked for, those that are draining not counted. None leaves a role as it is.

        More: what is draining stays after all, lowest number first; then new members come. Fewer: those with the
        highest numbers drain. Raises NotAllowedError for fewer brokers than 1, or when bookies would drain and fewer
        than `bookies_needed` remained.
        """
        found = self
        if brokers is not None:
            found = found._with_brokers(brokers)
        if bookies is not None:
            found = found._with_bookies(bookies, bookies_needed)
        return found

    def drained(self, member: str, bookies_needed: int) -> "DesiredState":
        """`member` gives up what it has, and ends.

        Raises NoSuchKey for an unknown member, NotAllowedError as `scaled` does.
        """
        self._check_known(member)
        if member in self.draining:
            return self
        found = replace(self, draining=self.draining | {member})
        if member in self.broker_ids and not found.wanted_brokers:
            raise NotAllowedError(f"{member} is the last broker: add one first, with `magnetar scale --brokers 2`")
        if member in self.bookie_ids:
            found._check_bookies(bookies_needed, member)
        return found

    def undrained(self, member: str) -> "DesiredState":
        """`member` stays after all. Raises NoSuchKey for one that is unknown, or has ended already."""
        self._check_known(member)
        return replace(self, draining=self.draining - {member})

    def without(self, member: str) -> "DesiredState":
        """`member` was drained and has ended."""
        return replace(
            self,
            brokers=tuple(number for number in self.brokers if broker_id(number) != member),
            bookies=tuple(number for number in self.bookies if bookie_id(number) != member),
            draining=self.draining - {member},
        )

    def with_bookies_found(self, bookies: Iterable[str]) -> "DesiredState":
        """Bookies that the cluster has although no record of this kind said so: those of an older version."""
        numbers = {*self.bookies}
        for one in bookies:
            digits = one.rpartition("-")[2]
            if digits.isdecimal() and bookie_id(int(digits)) == one:
                numbers.add(int(digits))
        return replace(self, bookies=tuple(sorted(numbers)))

    def _check_known(self, member: str) -> None:
        if member not in self:
            there = ", ".join([*self.broker_ids, *self.bookie_ids])
            raise NoSuchKey(f"{member[:100]} is not a broker or bookie of this cluster: choose one of {there}")

    def _check_bookies(self, needed: int, *leaving: str) -> None:
        remaining = len(self.wanted_bookies)
        if remaining < needed:
            names = ", ".join(leaving)
            raise NotAllowedError(
                f"without {names} {remaining} bookies would remain, but ledgers need {needed} "
                f"(managedLedgerDefaultEnsembleSize): add bookies first, with `magnetar scale --bookies "
                f"{needed + len(leaving)}`"
            )

    def _with_brokers(self, count: int) -> "DesiredState":
        if not 1 <= count <= MEMBERS_MAX:
            raise NotAllowedError(f"a cluster has 1 to {MEMBERS_MAX} brokers, not {count}: choose another number")
        found = self._with_fewer(self.wanted_brokers, count)._with_draining_back(self.brokers, broker_id, count)
        numbers = [*found.brokers]
        candidate = 1
        while len(numbers) - len(found.brokers) < count - len(found.wanted_brokers):
            if candidate not in self.brokers:
                numbers.append(candidate)
            candidate += 1
        return replace(found, brokers=tuple(sorted(numbers)))

    def _with_bookies(self, count: int, needed: int) -> "DesiredState":
        if not 1 <= count <= MEMBERS_MAX:
            raise NotAllowedError(f"a cluster has 1 to {MEMBERS_MAX} bookies, not {count}: choose another number")
        leaving = self.wanted_bookies[count:]
        found = self._with_fewer(self.wanted_bookies, count)._with_draining_back(self.bookies, bookie_id, count)
        if leaving:
            found._check_bookies(needed, *leaving)
        first = found.bookies_ever + 1
        more = max(count - len(found.wanted_bookies), 0)
        return replace(found, bookies=(*found.bookies, *range(first, first + more)))

    def _with_fewer(self, wanted: list[str], count: int) -> "DesiredState":
        return replace(self, draining=self.draining | {*wanted[count:]})

    def _with_draining_back(self, numbers: tuple[int, ...], name: Callable[[int], str], count: int) -> "DesiredState":
        """Members that are draining stay, lowest number first, until `count` of the role are wanted."""
        ids = [name(number) for number in numbers]
        wanted = [one for one in ids if one not in self.draining]
        back = [one for one in ids if one in self.draining][: max(count - len(wanted), 0)]
        return replace(self, draining=self.draining - {*back})

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """The record as it is stored."""
        return pack(
            {
                **self.others,
                "brokers": list(self.brokers),
                "bookies": list(self.bookies),
                "draining": sorted(self.draining),
                "bookies_ever": self.bookies_ever,
            }
        )

    @staticmethod
    def unpack(value: bytes) -> "DesiredState":
        """The inverse of `pack`. Raises MetadataError for anything else."""
        try:
            record = unpack(value)
        except ProtocolError as error:
            raise MetadataError(f"the desired state cannot be decoded: {error}") from error
        if not is_text_map(record):
            raise MetadataError("the desired state is no map")
        known = {"brokers", "bookies", "draining", "bookies_ever"}
        ever = record.get("bookies_ever")
        draining = record.get("draining")
        if type(ever) is not int or not is_list(draining) or not all(isinstance(one, str) for one in draining):
            raise MetadataError("the desired state is malformed")
        return DesiredState(
            _numbers(record.get("brokers")),
            _numbers(record.get("bookies")),
            frozenset(cast("list[str]", draining)),
            ever,
            {name: one for name, one in record.items() if name not in known},
        )


def _numbers(value: object) -> tuple[int, ...]:
    if not is_list(value) or not all(type(one) is int for one in value):
        raise MetadataError(f"the desired state is malformed: {value!r:.100} are no numbers of members")
    return tuple(cast("list[int]", value))


DESIRED_RECORDS = RecordKind(metadata_keys.DESIRED_STATE, DesiredState.unpack, NAMES_NO_LEDGERS)
