"""From what the operator asked for to what should run. Pure decisions; `desired.planner` decides where it runs."""

from collections.abc import Mapping, Sequence

from ..actors.desired.record import DesiredState
from ..protocol.errors import ClusterError, SettingError
from ..runtime.settings.declarations import Settings
from ..runtime.settings.text import Value

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
    return Settings.from_dict(read_settings(ensemble, config, given, environment))


def read_settings(
    ensemble: str | None = None,
    config: str | None = None,
    given: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Value]:
    """As `load_settings`, but only what was given, by name. Whether they fit together is not checked.

    A start adds them to the stored ones (`settings_at_start`). Raises SettingError.
    """
    overrides = {name: as_text(value) for name, value in (given or {}).items()}
    if ensemble is not None:
        parts = ensemble.split("/")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
            raise SettingError(
                f"{ensemble!r} is not an ensemble: write ensemble size/write quorum/ack quorum, such as 3/3/2"
            )
        overrides.update(zip(REPLICATION_NAMES, parts, strict=True))
    return Settings.read(config, environment, overrides)


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


def settings_at_start(
    stored: Mapping[str, Value] | None, given: Mapping[str, Value]
) -> tuple[Settings, dict[str, Value], list[str]]:
    """The settings of a cluster from now on, what is stored of them, and what the operator should be told.

    States, by what is stored (S) and what this start was given (G):

        stored                                     given   in force    stored then       told
        None: a new cluster, or an older release   G       G           G                 nothing
        S                                          none    S           S                 what S says
        S                                          G       S, then G   S, then G         each change, old and new value
        S, with names that a newer release wrote   G       as above    these names, too  that they have no effect

    What is not in force has its default. A default is not stored. So `--set NAME=<its default>` takes a setting out.
    Raises SettingError when they do not fit together.
    """
    defaults = Settings().to_dict()
    before = dict(stored or {})
    known = {name: value for name, value in before.items() if name in defaults}
    merged = {**known, **given}
    try:
        settings = Settings.from_dict(merged)
    except SettingError as error:
        kept = _listed({name: value for name, value in known.items() if name not in given})
        if not kept:
            raise
        raise SettingError(
            f"{error}. The settings of the last start count as well: {kept}. --set changes them"
        ) from None
    told: list[str] = []
    if stored is not None:
        changed = {name: known.get(name, defaults[name]) for name in given}
        told += [
            f"setting {name}: {as_text(old)} -> {as_text(given[name])}"
            for name, old in changed.items()
            if old != given[name]
        ]
        kept = {name: value for name, value in known.items() if name not in given}
        told += [f"settings of the last start: {_listed(kept)}"] if kept else []
    unknown = {name: value for name, value in before.items() if name not in defaults}
    told += [f"settings of a newer release, which have no effect in this one: {_listed(unknown)}"] if unknown else []
    chosen = {name: value for name, value in settings.to_dict().items() if value != defaults[name]}
    return settings, {**unknown, **chosen}, told


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


def _listed(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={as_text(value)}" for name, value in sorted(values.items()))


def as_text(value: object) -> str:
    """A value as `--set` and a settings file take it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
