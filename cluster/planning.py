"""From what the operator asked for to what should run. Pure decisions; `desired.planner` decides where it runs."""

from collections.abc import Mapping, Sequence

from ..actors.desired.record import DesiredState
from ..protocol.errors import ClusterError, SettingError
from ..runtime.settings.declarations import Settings

REPLICATION_NAMES = (
    "managedLedgerDefaultEnsembleSize",
    "managedLedgerDefaultWriteQuorum",
    "managedLedgerDefaultAckQuorum",
)


DEFAULT_BROKERS = 2
DEFAULT_BOOKIES = 3
"""Of a new cluster, when the operator gives no numbers."""


def load_settings(
    ensemble: str | None = None,
    config: str | None = None,
    given: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from the file `config`, the environment, `given` by name, and `ensemble` as `E/Qw/Qa`.

    Raises SettingError for anything unknown or impossible.
    """
    overrides = {name: _as_text(value) for name, value in (given or {}).items()}
    if ensemble is not None:
        parts = ensemble.split("/")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
            raise SettingError(
                f"{ensemble!r} is not an ensemble: write ensemble size/write quorum/ack quorum, such as 3/3/2"
            )
        overrides.update(zip(REPLICATION_NAMES, parts, strict=True))
    return Settings.load(config, environment, overrides)


def parse_settings(given: list[str]) -> dict[str, object]:
    """`name=value` pairs as a dictionary. Raises SettingError for one without a name, or a name given twice."""
    parsed: dict[str, object] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise SettingError(f"{pair!r} is not a setting: write NAME=VALUE")
        if name.strip() in parsed:
            raise SettingError(f"{name.strip()} is set twice: give it once")
        parsed[name.strip()] = value.strip()
    return parsed


def check_size(brokers: int, bookies: int, settings: Settings) -> None:
    """Raise ClusterError for a cluster that could not acknowledge anything."""
    if brokers < 1:
        raise ClusterError(f"a cluster needs at least one broker, but {brokers} were asked for: raise --brokers")
    if bookies < settings.ack_quorum:
        raise ClusterError(
            f"{bookies} bookies are too few for an ack quorum of {settings.ack_quorum} "
            f"(ensemble {settings.ensemble_size}/{settings.write_quorum}/{settings.ack_quorum}): "
            "raise --bookies, or choose a smaller --ensemble"
        )


def check_accepted(accepted: Sequence[str], registered: Sequence[str]) -> None:
    """Raise ClusterError for a bookie that cannot have lost its disk, because it never was."""
    for bookie in accepted:
        if bookie not in registered:
            there = ", ".join(sorted(registered, key=_number)) or "none yet"
            raise ClusterError(
                f"--accept-lost-disk names {bookie}, which is not a bookie of this cluster: choose one of {there}"
            )


def desired_at_start(
    record: DesiredState | None, found: Sequence[str], brokers: int | None, bookies: int | None, settings: Settings
) -> tuple[DesiredState, list[str]]:
    """What runs from now on, and what the operator should be told of it.

    `record` is what ran until now. It is None in a new cluster, and in one of an older version: then `found` names the
    bookies that there are. Without numbers what ran runs again. Brokers that were to drain are gone: nothing of them is
    left. Raises ClusterError for a cluster that could not acknowledge anything, NotAllowedError.
    """
    if record is None:
        state = DesiredState.of(brokers or DEFAULT_BROKERS, 0).with_bookies_found(found)
        wanted = max(bookies or DEFAULT_BOOKIES, len(state.bookies))
        state = state.scaled(None, wanted, settings.ensemble_size)
        check_size(len(state.wanted_brokers), len(state.wanted_bookies), settings)
        return state, []
    state = record.scaled(brokers, bookies, settings.ensemble_size)
    check_size(len(state.wanted_brokers), len(state.wanted_bookies), settings)
    told: list[str] = []
    for role, before, now in (
        ("brokers", record.wanted_brokers, state.wanted_brokers),
        ("bookies", record.wanted_bookies, state.wanted_bookies),
    ):
        if before != now:
            told.append(f"the cluster had {len(before)} {role}; it has {len(now)} from now on")
    told += [f"{bookie} drains: its ledgers are copied to other bookies" for bookie in state.draining_bookies]
    for broker in state.broker_ids:
        state = state.without(broker) if broker in state.draining else state
    return state, told


def _number(bookie: str) -> tuple[int, str]:
    digits = bookie.rpartition("-")[2]
    return (int(digits) if digits.isdecimal() else 0, bookie)


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
