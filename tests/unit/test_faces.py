"""Each public call of both faces has its parameters and its docstring from one declaration."""

import ast

import pytest

from tools.generate_faces import (
    CALLS,
    CREATORS,
    FACES,
    OPTIONS,
    ROOT,
    Call,
    Change,
    Parameter,
    changed,
    faces,
    method,
    mirrored,
    options,
    parameters,
    parsed,
    written,
)

COLOUR = Parameter(
    "colour", "colour: str | None = None", "Of the message, which is said at such length that it needs one more line."
)


def test_the_faces_are_as_the_declarations_say() -> None:
    """If not: `make reference`."""
    for file, text in faces().items():
        assert (ROOT / file).read_text() == text


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_new_parameter_of_send_reaches_signature_docstring_and_declaration(call: Call) -> None:
    source = (ROOT / call.file).read_text()
    before = parameters(source, method(parsed(source), call.of, call.name))
    declared = [one for one in before if one.name not in call.own]
    declared.append(COLOUR)
    after = written(source, call, declared)
    found = parameters(after, method(parsed(after), call.of, call.name))
    assert found == [*before, COLOUR]
    (handed_on,) = [
        [argument.id for argument in node.args if isinstance(argument, ast.Name)]
        for node in ast.walk(method(parsed(after), call.of, call.name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "outgoing"
    ]
    assert handed_on == [one.name for one in declared if one.name != "self"]
    assert ("colour is None" in after) == ("self._plain\n" in source and call.name == "send_async")


@pytest.mark.parametrize(("call", "kind"), CREATORS.items(), ids=str)
def test_a_new_option_reaches_signature_and_docstring(call: Call, kind: str) -> None:
    source = (ROOT / call.file).read_text()
    before = parameters(source, method(parsed(source), call.of, call.name))
    declared = options((ROOT / OPTIONS).read_text(), kind)
    after = written(source, call, [*declared, COLOUR])
    found = parameters(after, method(parsed(after), call.of, call.name))
    place = len(before) - len(call.last)
    assert found == [*before[:place], COLOUR, *before[place:]]
    assert max(map(len, after.splitlines()[method(parsed(after), call.of, call.name).body[0].lineno :])) <= 120


def test_options_behind_kw_only_have_no_parameter() -> None:
    declared = """
class Some(Options):
    CALL = "some"
    first: str = option(doc="The first.", text=True)
    second: ClassVar[int] = without_effect(1)
    third: Mapping[str, str] = option(doc="The third.", texts=True)
    fourth: Schema | None = option(None, "The fourth.", given="object")
    fifth: int = option(128 * 1024, "The " "fifth.", minimum=1)
    _: KW_ONLY
    sixth: int = option(1, "The sixth.")
"""
    assert options(declared, "Some") == [
        Parameter("self", "self", ""),
        Parameter("first", "first: str", "The first."),
        Parameter("second", "second: int = 1", "Accepted without effect."),
        Parameter("third", "third: Mapping[str, str] | None = None", "The third."),
        Parameter("fourth", "fourth: object = None", "The fourth."),
        Parameter("fifth", "fifth: int = 128 * 1024", "The fifth."),
    ]


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("Client", "create_table_view"),
        ("Producer", "flush"),
        ("Consumer", "reconsume_later"),
        ("Reader", "seek"),
        ("TableView", "get"),
    ],
)
def test_what_the_asyncio_face_declares_reaches_the_blocking_face(kind: str, call: str) -> None:
    blocking, aio = next(pair for pair in FACES.items() if pair[0][1] == kind)
    source, model = (ROOT / blocking[0]).read_text(), (ROOT / aio[0]).read_text()
    function = method(parsed(model), aio[1], call)
    last = [*function.args.args, *function.args.defaults][-1]
    end = (last.end_lineno or 0, last.end_col_offset or 0)
    begin = (function.body[0].lineno, function.body[0].col_offset + len('"""'))
    changes = [
        Change(end, end, ", colour: int = 3"),
        Change(begin, begin, "In colour. "),
    ]
    after = mirrored(source, kind, changed(model, changes), aio[1])
    found = method(parsed(after), kind, call)
    assert [one.text for one in parameters(after, found)][-1] == "colour: int = 3"
    assert (ast.get_docstring(found) or "").startswith("In colour. ")
    before = method(parsed(source), kind, call)
    assert ast.dump(ast.Module(found.body[1:], [])) == ast.dump(ast.Module(before.body[1:], []))
