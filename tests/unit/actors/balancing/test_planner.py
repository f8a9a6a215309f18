"""Moves that are planned: their rules, for any loads, and that without changes they end evenly or stuck."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.actors.balancing.planner import Loads, PlanLimits, plan

LIMITS = PlanLimits(threshold=0.1, least=1.0, moves_max=4)
BROKERS = ["broker-1", "broker-2", "broker-3", "broker-4"]
UNITS = st.integers(0, 30).map(lambda number: f"unit-{number}")
WEIGHTS = st.floats(0, 1000, allow_nan=False)
WORLDS = st.builds(
    lambda units, owners, rest: Loads(units, {unit: owners[index] for index, unit in enumerate(units)}, rest),
    st.dictionaries(UNITS, WEIGHTS, max_size=31),
    st.lists(st.sampled_from(BROKERS), min_size=31, max_size=31),
    st.dictionaries(st.sampled_from(BROKERS), WEIGHTS),
)


def anything(unit: str) -> bool:
    return True


def moved(loads: Loads, moves: dict[str, str]) -> Loads:
    return Loads(loads.units, {**loads.owners, **moves}, loads.rest)


def squares(loads: Loads, takers: list[str]) -> float:
    return sum(load**2 for load in loads.by_broker(takers).values())


def placed(**units: tuple[str, float]) -> Loads:
    """Loads from `unit=(broker, load)`."""
    return Loads({unit: load for unit, (_, load) in units.items()}, {unit: one for unit, (one, _) in units.items()}, {})


@given(WORLDS, st.sets(st.sampled_from(BROKERS)), st.sets(UNITS), st.integers(0, 6))
def test_each_move_goes_between_takers_and_makes_loads_more_even(
    loads: Loads, taking: set[str], resting: set[str], moves_max: int
) -> None:
    takers = sorted(taking)
    limits = PlanLimits(0.1, 1.0, moves_max)
    moves = plan(loads, takers, lambda unit: unit not in resting, limits)
    assert len(moves) <= moves_max
    before = loads
    for unit, target in moves.items():
        totals = before.by_broker(takers)
        source = before.owners[unit]
        mean = sum(totals.values()) / len(totals)
        assert source in taking and target in taking and source != target
        assert unit not in resting
        assert totals[source] > mean
        assert totals[target] + loads.units[unit] < totals[source]
        after = moved(before, {unit: target})
        assert squares(after, takers) < squares(before, takers)
        before = after


@given(WORLDS)
def test_loads_within_the_threshold_move_nothing(loads: Loads) -> None:
    totals = loads.by_broker(BROKERS)
    mean = sum(totals.values()) / len(BROKERS)
    if max(totals.values()) <= mean + max(0.1 * mean, 1.0):
        assert plan(loads, BROKERS, anything, LIMITS) == {}


@given(WORLDS)
def test_steady_loads_come_to_rest_and_no_move_that_would_help_is_left(loads: Loads) -> None:
    for _ in range(200):
        moves = plan(loads, BROKERS, anything, LIMITS)
        if not moves:
            break
        loads = moved(loads, moves)
    else:
        raise AssertionError("the moves do not end")
    totals = loads.by_broker(BROKERS)
    mean = sum(totals.values()) / len(BROKERS)
    bound = mean + max(0.1 * mean, 1.0)
    lowest = min(totals.values())
    for broker in BROKERS:
        if totals[broker] <= bound:
            continue
        for unit, owner in loads.owners.items():
            load = loads.units[unit]
            if owner == broker and load >= 0.001 * mean:
                assert lowest + load > totals[broker] - (bound - mean) / 2


def test_one_heavy_unit_stays_where_it_is() -> None:
    loads = placed(heavy=("broker-1", 100.0), light=("broker-2", 1.0))
    assert plan(loads, BROKERS[:2], anything, LIMITS) == {}


def test_a_heavy_unit_ends_up_alone() -> None:
    loads = placed(heavy=("broker-1", 100.0), small=("broker-1", 30.0), tiny=("broker-1", 20.0))
    moves = plan(loads, BROKERS[:2], anything, LIMITS)
    after = moved(loads, moves)
    assert sorted(after.by_broker(BROKERS[:2]).values()) == [50.0, 100.0]
    assert plan(after, BROKERS[:2], anything, LIMITS) == {}


def test_a_broker_that_is_drained_neither_gives_nor_takes_nor_counts() -> None:
    loads = placed(a=("broker-1", 50.0), b=("broker-1", 50.0), c=("broker-2", 100.0), d=("broker-3", 900.0))
    assert plan(loads, ["broker-1", "broker-2"], anything, LIMITS) == {}
    assert set(plan(loads, ["broker-1", "broker-2", "broker-4"], anything, LIMITS).values()) == {"broker-4"}


def test_a_broker_whose_heavy_units_rest_is_passed_over() -> None:
    loads = placed(a=("broker-1", 60.0), b=("broker-1", 60.0), c=("broker-2", 50.0), d=("broker-2", 50.0))
    moves = plan(loads, BROKERS, lambda unit: unit not in ("a", "b"), LIMITS)
    assert moves == {"c": "broker-3"}


def test_little_load_moves_nothing_however_uneven() -> None:
    loads = placed(a=("broker-1", 40.0), b=("broker-1", 40.0))
    assert plan(loads, BROKERS[:2], anything, PlanLimits(0.1, 100.0, 4)) == {}


def test_a_thousand_units_on_a_hundred_brokers_are_planned_at_once() -> None:
    brokers = [f"broker-{number}" for number in range(100)]
    units = {f"unit-{number}": float(number % 97 + 1) for number in range(1000)}
    owners = {unit: brokers[index % 10] for index, unit in enumerate(units)}
    loads = Loads(units, owners, {})
    assert len(plan(loads, brokers, anything, PlanLimits(0.1, 1.0, 64))) == 64
