"""Where members run: every small world is tried, and what must hold in all of them is checked."""

from dataclasses import replace
from itertools import product

import pytest

from magnetar.actors.desired.planner import CookieFound, Machine, Observed, RunOn, WaitFor, check_cookies, plan
from magnetar.actors.desired.record import DesiredState
from magnetar.protocol.errors import ClusterError

MINE = CookieFound("c", "i1")
A, B, C = (Machine(name, f"10.0.0.{number}") for number, name in enumerate("abc", start=1))


def nodes(targets: dict[str, RunOn | WaitFor]) -> dict[str, str]:
    """By member: the node on which it runs, empty for one that waits."""
    return {one: target.machine.ray_node_id if isinstance(target, RunOn) else "" for one, target in targets.items()}


def test_new_members_go_round_the_machines() -> None:
    assert nodes(plan("c", DesiredState.of(3, 4), Observed([A, B, C]))) == {
        "bookie-1": "a", "bookie-2": "b", "bookie-3": "c", "bookie-4": "a",
        "broker-1": "a", "broker-2": "b", "broker-3": "c", "admin": "a",
    }  # fmt: skip


def test_a_bookie_runs_where_its_cookie_lies_also_on_a_node_with_another_id() -> None:
    before = Observed([A, B], {"bookie-1": "b"}, {"bookie-1": "i1"})
    assert nodes(plan("c", DesiredState.of(1, 1), before))["bookie-1"] == "b"
    gone = plan("c", DesiredState.of(1, 1), replace(before, machines=[A]))
    assert gone["bookie-1"] == WaitFor("its data lies on no Ray node that is alive")
    again = replace(B, ray_node_id="b, started again", cookies={"bookie-1": MINE})
    assert (
        nodes(plan("c", DesiredState.of(1, 1), replace(before, machines=[A, again])))["bookie-1"] == again.ray_node_id
    )


def test_a_cookie_of_an_older_life_of_the_disk_is_left_alone() -> None:
    old = replace(A, cookies={"bookie-1": CookieFound("c", "lost")})
    new = replace(B, cookies={"bookie-1": MINE})
    registered = {"bookie-1": "i1"}
    assert nodes(plan("c", DesiredState.of(1, 1), Observed([old, new], {}, registered)))["bookie-1"] == "b"
    check_cookies("c", [old, new], registered)
    assert nodes(plan("c", DesiredState.of(1, 1), Observed([old], {}, registered)))["bookie-1"] == ""


def test_a_shared_directory_is_one_place_and_a_copy_is_refused() -> None:
    one, other = (replace(machine, place_id="shared", cookies={"bookie-1": MINE}) for machine in (A, B))
    registered = {"bookie-1": "i1"}
    check_cookies("c", [one, other], registered)
    assert nodes(plan("c", DesiredState.of(1, 1), Observed([one, other], {}, registered)))["bookie-1"] == "a"
    moved = plan("c", DesiredState.of(1, 1), Observed([other], {"bookie-1": "a"}, registered))
    assert nodes(moved)["bookie-1"] == "b", "another node that sees the directory carries on"
    copy = replace(other, place_id="copy")
    with pytest.raises(ClusterError, match=r"lies on 10\.0\.0\.1 and on 10\.0\.0\.2: one is a copy"):
        check_cookies("c", [one, copy], registered)
    waits = plan("c", DesiredState.of(1, 1), Observed([one, copy], {}, registered))["bookie-1"]
    assert isinstance(waits, WaitFor) and "one is a copy" in waits.reason


def test_the_bookies_of_another_cluster_are_refused() -> None:
    with pytest.raises(ClusterError, match=r"bookie-1 on 10\.0\.0\.1 belongs to cluster other"):
        check_cookies("c", [replace(A, cookies={"bookie-1": CookieFound("other", "i1")})], {})


def test_a_bookie_whose_loss_was_accepted_starts_empty_where_the_fewest_are() -> None:
    observed = Observed([A, B], {"bookie-1": "a", "bookie-2": "gone"}, {"bookie-1": "i1", "bookie-2": "i2"})
    desired = DesiredState.of(1, 2)
    assert nodes(plan("c", desired, observed))["bookie-2"] == ""
    assert nodes(plan("c", desired, replace(observed, lost_instances={"bookie-2": "i2"})))["bookie-2"] == "b"
    assert nodes(plan("c", desired, replace(observed, lost_instances={"bookie-2": "older"})))["bookie-2"] == ""


@pytest.mark.promise("30.8")
def test_brokers_leave_a_machine_that_drains_and_bookies_stay() -> None:
    leaving = replace(A, leaving=True)
    running = {"bookie-1": "a", "broker-1": "a", "admin": "a"}
    observed = Observed([leaving, B], running, {"bookie-1": "i1"})
    assert nodes(plan("c", DesiredState.of(1, 1), observed)) == {"bookie-1": "a", "broker-1": "b", "admin": "b"}
    alone = Observed([leaving], running, {"bookie-1": "i1"})
    assert nodes(plan("c", DesiredState.of(1, 1), alone)) == running, "there is nothing better"


def test_brokers_even_out_one_at_a_time_and_only_when_asked() -> None:
    desired, here = DesiredState.of(4, 1), {f"broker-{n}": "a" for n in range(1, 5)}
    assert set(nodes(plan("c", desired, Observed([A, B], here)))[f"broker-{n}"] for n in range(1, 5)) == {"a"}
    moves = 0
    while (now := nodes(plan("c", desired, Observed([A, B], here), even_out=True))) != {**now, **here}:
        assert sum(now[broker] != here[broker] for broker in here) == 1
        here = {broker: now[broker] for broker in here}
        moves += 1
    assert moves == 2 and sorted(here.values()) == ["a", "a", "b", "b"]


def test_without_machines_everything_waits() -> None:
    assert set(nodes(plan("c", DesiredState.of(1, 1), Observed([]))).values()) == {""}


COOKIES = (None, MINE, CookieFound("c", "other life"), CookieFound("foreign", "i1"))


@pytest.mark.parametrize("even_out", [False, True])
def test_in_every_small_world_a_bookie_runs_only_where_its_data_may_be(even_out: bool) -> None:
    """Two machines, alive or not, leaving or not, with one directory or two, and a cookie or none on each. The bookie
    is registered or not, and ran on either or nowhere.
    """
    desired = DesiredState.of(2, 1)
    worlds = 0
    for cookies, alive, leaving, shared, instance, ran, lost in product(
        product(COOKIES, repeat=2), product((True, False), repeat=2), product((True, False), repeat=2),
        (True, False), (None, "i1"), ("", "a", "b"), (True, False),
    ):  # fmt: skip
        machines = [
            replace(
                machine,
                cookies={} if cookie is None else {"bookie-1": cookie},
                leaving=leaves,
                place_id="shared" if shared else machine.ray_node_id,
            )
            for machine, cookie, is_alive, leaves in zip((A, B), cookies, alive, leaving, strict=True)
            if is_alive
        ]
        registered = {"bookie-1": instance} if instance else {}
        running = {"bookie-1": ran, "broker-1": ran} if ran else {}
        observed = Observed(machines, running, registered, {"bookie-1": "i1"} if lost else {})
        targets = plan("c", desired, observed, even_out=even_out)
        worlds += 1
        assert set(targets) == {"bookie-1", "broker-1", "broker-2", "admin"}
        live = {machine.ray_node_id: machine for machine in machines}
        for member, target in targets.items():
            if isinstance(target, RunOn):
                assert target.machine is live[target.machine.ray_node_id], "nothing runs on a machine that is gone"
            else:
                assert member == "bookie-1" or not machines, "brokers and the admin run wherever there is a machine"
        target = targets["bookie-1"]
        current = [one for one in machines if one.cookies.get("bookie-1") == MINE]
        usable = [one for one in machines if instance is None and one.cookies.get("bookie-1") in (MINE, COOKIES[2])]
        if isinstance(target, RunOn) and ran != target.machine.ray_node_id:
            assert target.machine in current or target.machine in usable or instance is None or lost
            if instance is None and usable:
                assert target.machine in usable, "a first start that was interrupted goes on where it began"
        if isinstance(target, WaitFor) and machines:
            assert instance is not None or len({one.place for one in usable}) > 1
            assert not current or len({one.place for one in current}) > 1 or instance is None
        staying = [one for one in machines if not one.leaving]
        for broker in ("broker-1", "broker-2"):
            found = targets[broker]
            assert not isinstance(found, RunOn) or not staying or found.machine in staying
    assert worlds == 16 * 4 * 4 * 2 * 2 * 3 * 2


HEAD = replace(A, takes_bookies=False, takes_brokers=False)
STORAGE = [replace(machine, takes_brokers=False, takes_admin=False) for machine in (B, C)]
SERVING = [replace(Machine(name, "10.0.1.1"), takes_bookies=False, takes_admin=False) for name in ("d", "e")]


def test_members_start_only_on_machines_that_take_them() -> None:
    assert nodes(plan("c", DesiredState.of(3, 3), Observed([*SERVING, *STORAGE, HEAD]))) == {
        "bookie-1": "b", "bookie-2": "c", "bookie-3": "b",
        "broker-1": "d", "broker-2": "e", "broker-3": "d", "admin": "a",
    }  # fmt: skip


def test_members_that_no_machine_takes_wait_and_the_admin_runs_anywhere() -> None:
    assert plan("c", DesiredState.of(1, 1), Observed([HEAD])) == {
        "bookie-1": WaitFor("no Ray node that takes it is alive"),
        "broker-1": WaitFor("no Ray node that takes brokers is alive"),
        "admin": RunOn(HEAD),
    }
    elsewhere = nodes(plan("c", DesiredState.of(1, 1), Observed([*STORAGE, *SERVING], {"admin": "a"})))
    assert elsewhere == {"bookie-1": "b", "broker-1": "d", "admin": "b"}
    back = plan("c", DesiredState.of(1, 1), Observed([*STORAGE, HEAD], {"admin": "b"}))
    assert nodes(back)["admin"] == "a", "it goes back to a machine that takes it"


def test_a_bookie_runs_at_its_data_also_where_no_bookies_are_taken() -> None:
    holder = replace(HEAD, cookies={"bookie-1": MINE})
    observed = Observed([holder, *STORAGE], registered={"bookie-1": "i1"})
    assert nodes(plan("c", DesiredState.of(1, 1), observed))["bookie-1"] == "a"
    running = Observed([HEAD, *STORAGE], {"bookie-1": "a"}, {"bookie-1": "i1"})
    assert nodes(plan("c", DesiredState.of(1, 1), running))["bookie-1"] == "a"


def test_brokers_move_and_even_out_over_machines_that_take_them() -> None:
    leaving = replace(SERVING[0], leaving=True)
    here = {"broker-1": "d", "broker-2": "d"}
    assert nodes(plan("c", DesiredState.of(2, 1), Observed([leaving, HEAD], here)))["broker-1"] == "d"
    moved = nodes(plan("c", DesiredState.of(2, 1), Observed([leaving, HEAD, SERVING[1]], here)))
    assert (moved["broker-1"], moved["broker-2"]) == ("e", "e")
    desired = DesiredState.of(2, 1)
    assert nodes(plan("c", desired, Observed([SERVING[0], HEAD], here), even_out=True))["broker-2"] == "d"
    evened = nodes(plan("c", desired, Observed([SERVING[0], HEAD, SERVING[1]], here), even_out=True))
    assert (evened["broker-1"], evened["broker-2"]) == ("d", "e")


def test_a_bookie_starts_on_its_own_machine_and_waits_for_that() -> None:
    own = [replace(machine, only_bookie=f"bookie-{number}") for machine, number in ((B, 2), (C, 1))]
    assert plan("c", DesiredState.of(1, 3), Observed([*own, *SERVING])) == {
        "bookie-1": RunOn(own[1]),
        "bookie-2": RunOn(own[0]),
        "bookie-3": WaitFor("no Ray node that takes it is alive"),
        "broker-1": RunOn(own[0]),
        "admin": RunOn(own[0]),
    }
    assert nodes(plan("c", DesiredState.of(1, 3), Observed([*own, A])))["bookie-3"] == "a", "a machine for any"


def test_a_bookie_runs_at_its_data_also_on_the_machine_of_another() -> None:
    holder = replace(B, only_bookie="bookie-2", cookies={"bookie-1": MINE})
    targets = plan("c", DesiredState.of(1, 1), Observed([A, holder], registered={"bookie-1": "i1"}))
    assert nodes(targets)["bookie-1"] == "b"


BAD = replace(B, problem="its disk is damaged", unread=("bookie-1",))
"""A machine that could not be looked at, and that has a directory of bookie-1."""


def test_nothing_starts_on_a_machine_with_a_problem_and_what_runs_there_stays() -> None:
    desired = DesiredState.of(2, 2)
    fresh = plan("c", desired, Observed([replace(BAD, unread=()), A]))
    assert set(nodes(fresh).values()) == {"a"}
    running = {"bookie-1": "b", "broker-1": "b", "admin": "b"}
    stays = nodes(plan("c", desired, Observed([BAD, A], running, {"bookie-1": "i1"}), even_out=True))
    assert {stays[one] for one in running} == {"b"}
    assert stays["bookie-2"] == stays["broker-2"] == "a"
    alone = plan("c", desired, Observed([BAD]))
    assert alone["admin"] == WaitFor("no Ray node could be looked at")
    assert set(nodes(alone).values()) == {""}


def test_brokers_are_not_evened_out_onto_a_machine_with_a_problem() -> None:
    running = {"broker-1": "a", "broker-2": "a", "broker-3": "a"}
    found = nodes(plan("c", DesiredState.of(3, 0), Observed([A, BAD], running), even_out=True))
    assert {found[one] for one in running} == {"a"}


@pytest.mark.parametrize("unread", [(), ("bookie-1",)])
def test_a_bookie_waits_while_its_data_may_lie_on_a_machine_with_a_problem(unread: tuple[str, ...]) -> None:
    observed = Observed([A, replace(BAD, unread=unread)], {"bookie-1": "b, before"}, {"bookie-1": "i1"})
    found = plan("c", DesiredState.of(1, 1), observed)["bookie-1"]
    assert isinstance(found, WaitFor) and "10.0.0.2" in found.reason, "the operator reads where to look"
    mended = replace(observed, machines=[A, replace(B, cookies={"bookie-1": MINE})])
    assert nodes(plan("c", DesiredState.of(1, 1), mended))["bookie-1"] == "b"


def test_an_unregistered_bookie_waits_for_an_unreadable_directory_of_its_name() -> None:
    found = plan("c", DesiredState.of(1, 2), Observed([A, BAD]))
    assert isinstance(found["bookie-1"], WaitFor)
    assert nodes(found)["bookie-2"] == "a"


def test_a_bookie_waits_whose_directory_may_be_a_copy_of_an_unreadable_one() -> None:
    holder = replace(A, cookies={"bookie-1": MINE})
    waits = plan("c", DesiredState.of(1, 1), Observed([holder, BAD], {}, {"bookie-1": "i1"}))["bookie-1"]
    assert isinstance(waits, WaitFor) and "10.0.0.2 has a directory of bookie-1" in waits.reason
    runs = Observed([holder, BAD], {"bookie-1": "a"}, {"bookie-1": "i1"})
    assert nodes(plan("c", DesiredState.of(1, 1), runs))["bookie-1"] == "a", "what runs goes on"


def test_the_loss_of_an_unreadable_disk_can_be_accepted() -> None:
    observed = Observed([A, BAD], {}, {"bookie-1": "i1"}, {"bookie-1": "i1"})
    assert nodes(plan("c", DesiredState.of(1, 1), observed))["bookie-1"] == "a"
