"""What the labels of a Ray node say, and what looks at data directories find."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from ray.exceptions import NodeDiedError

from magnetar.actors.desired.planner import CookieFound, Machine
from magnetar.actors.processes.survey import (
    BOOKIES_LABEL,
    BROKERS_LABEL,
    Look,
    UnreadableDirectory,
    look,
    only_bookie,
    ray_machines,
    survey,
    takes,
    tell_copies_apart,
    zone_of,
)
from magnetar.protocol.errors import ClusterError
from support.fakes.ray_nodes import FakeTasks, ray_node


@pytest.mark.parametrize(("value", "taken"), [("false", False), ("False", False), ("true", True), ("", True)])
def test_a_node_takes_members_unless_its_label_says_false(value: str, taken: bool) -> None:
    assert takes({BOOKIES_LABEL: value}, BOOKIES_LABEL) is taken
    assert takes({BOOKIES_LABEL: value}, BROKERS_LABEL), "another label"


def test_the_zone_is_that_of_the_first_label_that_a_node_has() -> None:
    assert zone_of({"topology.kubernetes.io/zone": "b", "magnetar/zone": "a"}) == "a"
    assert zone_of({"rack": "", "topology.kubernetes.io/zone": "b"}) == "b"
    assert zone_of({}) == ""


@pytest.mark.parametrize(("value", "only"), [("bookie-2", "bookie-2"), ("true", ""), ("False", ""), ("", "")])
def test_a_node_may_take_one_bookie_only(value: str, only: str) -> None:
    assert only_bookie({BOOKIES_LABEL: value}) == only
    assert only_bookie({}) == ""


# -- looks -------------------------------------------------------------------------------------------------------------


def write_cookie(directory: Path, bookie: str, text: str = '{"cluster_id": "c", "instance": "i"}') -> Path:
    path = directory / bookie / "cookie"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_a_look_finds_cookies_and_passes_over_what_is_none(tmp_path: Path) -> None:
    write_cookie(tmp_path, "bookie-1")
    (tmp_path / "bookie-2").mkdir()
    (tmp_path / "bookie-3").touch()
    assert look(str(tmp_path)).cookies == {"bookie-1": CookieFound("c", "i")}
    assert look(str(tmp_path / "new")).cookies == {}


@pytest.mark.parametrize("text", ["", "[]", '{"cluster_id": "c"}'])
def test_a_damaged_cookie_names_itself_and_all_bookies_beside_it(tmp_path: Path, text: str) -> None:
    write_cookie(tmp_path, "bookie-1")
    path = write_cookie(tmp_path, "bookie-2", text)
    with pytest.raises(UnreadableDirectory, match=f"the cookie {path} cannot be read") as raised:
        look(str(tmp_path))
    assert raised.value.bookies == ("bookie-1", "bookie-2")
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.bookies) == (str(raised.value), raised.value.bookies), "it travels through Ray"


def test_a_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> list[str]:
        raise PermissionError(13, "not allowed", path)

    monkeypatch.setattr("os.listdir", refused)
    with pytest.raises(UnreadableDirectory, match=r"the data directory .* cannot be read"):
        look(str(tmp_path))


def error_of(error: Exception) -> Callable[[str], object]:
    def raise_it(node: str) -> object:
        raise error

    return raise_it


NOT_IMPORTED = RuntimeError(
    "The remote function failed to import on the worker. This may be because needed library dependencies are not "
    "installed in the worker environment or cannot be found from sys.path []:\n\nTraceback (most recent call last):\n"
    "ModuleNotFoundError: No module named 'magnetar'\n"
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UnreadableDirectory("the cookie cannot be read", ["bookie-1"]), "the cookie cannot be read"),
        (ClusterError("of an older release"), "of an older release"),
        (NOT_IMPORTED, "Magnetar cannot be loaded there (ModuleNotFoundError: No module named 'magnetar'): install it"),
        (ModuleNotFoundError("No module named 'magnetar'"), "Magnetar cannot be loaded there"),
        (ZeroDivisionError("a defect"), "failed (ZeroDivisionError: a defect)"),
    ],
)
def test_a_node_that_answers_with_an_error_is_a_machine_with_a_problem(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Look("place", {"bookie-2": CookieFound("c", "i")})
    FakeTasks(good=lambda node: found, bad=error_of(error)).install(monkeypatch)
    monkeypatch.setattr("magnetar.actors.processes.survey.draining_nodes", lambda: {"bad"})
    machines, silent = survey([ray_node("bad"), ray_node("good")], "/data")
    bad, good = machines
    assert said in bad.problem and (bad.address, bad.cookies, bad.place) == ("at-bad", {}, "bad")
    assert bad.unread == (("bookie-1",) if isinstance(error, UnreadableDirectory) else ())
    assert good.problem == "" and good.cookies == found.cookies and good.place == "place"
    assert silent == {}


def test_a_node_that_does_not_answer_is_no_machine_unless_it_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = FakeTasks(good=lambda node: Look("place", {}))
    tasks.pending = {"hangs", "drains"}
    tasks.install(monkeypatch)
    monkeypatch.setattr("magnetar.actors.processes.survey.draining_nodes", lambda: {"drains"})
    machines, silent = survey([ray_node(one) for one in ("good", "hangs", "drains")], "/data")
    assert [machine.ray_node_id for machine in machines] == ["good", "drains"]
    assert list(silent) == ["hangs"] and "did not answer within 20 s" in silent["hangs"]


def test_an_error_of_ray_itself_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = FakeTasks(good=lambda node: Look("place", {}))
    tasks.install(monkeypatch)
    monkeypatch.setattr("magnetar.actors.processes.survey.draining_nodes", lambda: set[str]())

    def lost(node: str) -> object:
        raise NodeDiedError("it is gone\nand more") if node == "lost" else AssertionError

    monkeypatch.setattr("magnetar.actors.processes.survey.ask", lost)
    assert survey([ray_node("lost")], "/data") == ([], {"lost": "NodeDiedError: it is gone"})


def test_machines_that_may_be_copies_have_a_problem_when_that_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*arguments: object) -> object:
        raise ClusterError("the disk is full")

    monkeypatch.setattr("magnetar.actors.processes.survey.on_nodes", fails)
    one, other = (
        Machine(name, name, {bookie: CookieFound("c", "i")}, "same") for name, bookie in (("a", "x"), ("b", "y"))
    )
    alone = Machine("c", "c", place_id="alone")
    found = tell_copies_apart([one, other, alone], "/data")
    assert all("the disk is full" in machine.problem for machine in found[:2])
    assert [machine.unread for machine in found] == [("x",), ("y",), ()]
    assert found[2] == alone


# -- a start -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def three_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "magnetar.actors.processes.survey"
    monkeypatch.setattr(f"{module}.own_node_id", lambda: "own")
    monkeypatch.setattr(f"{module}.draining_nodes", lambda: set[str]())
    monkeypatch.setattr(f"{module}.ray_nodes", lambda: [ray_node(one) for one in ("bad", "own", "silent")])
    tasks = FakeTasks(bad=error_of(UnreadableDirectory("the cookie cannot be read", ["bookie-1"])))
    tasks.pending = {"silent"}
    tasks.install(monkeypatch)


@pytest.mark.usefixtures("three_nodes")
def test_a_start_warns_of_each_node_that_is_left_out_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machines = ray_machines(str(tmp_path), only_own=False)
    assert [(machine.ray_node_id, machine.problem) for machine in machines] == [
        ("own", ""),
        ("bad", "the cookie cannot be read"),
    ]
    assert caplog.messages == [
        "the Ray node at-bad (bad) is left out, and is looked at again: the cookie cannot be read",
        "the Ray node at-silent (silent) is left out, and is looked at again: it did not answer within 20 s: check its "
        "load and its network",
    ]


@pytest.mark.usefixtures("three_nodes")
def test_a_start_on_an_unreadable_directory_of_its_own_is_refused(tmp_path: Path) -> None:
    write_cookie(tmp_path, "bookie-1", "damaged")
    with pytest.raises(ClusterError, match="cannot be read"):
        ray_machines(str(tmp_path), only_own=False)
