"""The calls that send have the parameters that are declared once, in both faces."""

import ast

import pytest

from tools.generate_faces import CALLS, ROOT, Parameter, faces, method, parameters, written


def test_the_faces_are_as_the_declaration_says() -> None:
    """If not: `make reference`."""
    for file, text in faces().items():
        assert (ROOT / file).read_text() == text


@pytest.mark.parametrize(("file", "of", "name"), CALLS)
def test_a_new_parameter_reaches_signature_docstring_and_declaration(file: str, of: str, name: str) -> None:
    source = (ROOT / file).read_text()
    before = parameters(source, method(ast.parse(source), of, name))
    declared = [one for one in before if one.name != "callback"]
    declared.append(Parameter("colour", "colour: str | None = None", "Of the message."))
    after = written(source, of, name, declared)
    found = parameters(after, method(ast.parse(after), of, name))
    assert found == [*before, declared[-1]]
    (handed_on,) = [
        [argument.id for argument in node.args if isinstance(argument, ast.Name)]
        for node in ast.walk(method(ast.parse(after), of, name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "outgoing"
    ]
    assert handed_on == [one.name for one in declared if one.name != "self"]
    assert ("colour is None" in after) == ("self._plain\n" in source and name == "send_async")
