"""Records of the application's own classes: their definition, and the way to plain dicts and back."""

from collections.abc import Callable
from typing import cast

from .compiled import UsualWay, plain_maker, value_maker
from .shapes import MISSING, Optional, RecordField, Unfit, ValueShape

Maker = Callable[[dict[str, object]], object]


class FieldsShape(ValueShape):
    """A record, made of fields: a dataclass or a pydantic model.

    Usual values take the way of the functions in `compiled`, and all others the way that is written down here.
    """

    def __init__(self, kind: type, make: Maker | None = None) -> None:
        """`make` makes one of the values of its fields; without it the class does, which takes them by name.

        The fields are set later: they may refer to the record.
        """
        self.kind = kind
        self.fields: list[RecordField] = []
        self._make: Maker = (lambda values: kind(**values)) if make is None else make
        self.maker = make
        self._plain_makers: dict[bool, UsualWay] = {}
        self._value_maker: UsualWay | None = None

    def definition(self, named: set[str]) -> object:
        namespace = cast("str | None", getattr(self.kind, "_avro_namespace", None))
        name = self.kind.__name__
        full = name if namespace is None else f"{namespace}.{name}"
        if full in named:
            return full
        named.add(full)
        head: dict[str, object] = {"type": "record", "name": name}
        if namespace is not None:
            head["namespace"] = namespace
        return {**head, "fields": [one.definition(named) for one in self.fields_in_order()]}

    def fields_in_order(self) -> list[RecordField]:
        """As the definition has them."""
        is_sorted = getattr(self.kind, "_sorted_fields", False)
        return sorted(self.fields, key=lambda one: one.name) if is_sorted else self.fields

    def to_plain(self, value: object, text: bool) -> object:
        usual = self._plain_makers.get(text)
        if usual is None:
            usual = self._plain_makers[text] = plain_maker(self.kind, self.fields, text)
        found = usual(value)
        return self._slowly_plain(value, text) if found is None else found

    def of_plain(self, plain: object) -> object:
        usual = self._value_maker
        if usual is None:
            usual = self._value_maker = value_maker(self.kind, self.fields, self.maker)
        found = usual(plain)
        return self._slowly_of_plain(plain) if found is None else found

    def _slowly_plain(self, value: object, text: bool) -> object:
        if not isinstance(value, self.kind):
            raise Unfit(self.kind.__name__, value)
        plain: dict[str, object] = {}
        name = ""
        try:
            for field in self.fields:
                name = field.name
                plain[name] = field.shape.to_plain(getattr(value, name), text)
        except Unfit as error:
            error.path.append(name)
            raise
        return plain

    def _slowly_of_plain(self, plain: object) -> object:
        if not isinstance(plain, dict):
            raise Unfit(self.kind.__name__, plain)
        given = cast("dict[str, object]", plain)
        values: dict[str, object] = {}
        name = ""
        try:
            for field in self.fields:
                name = field.name
                if name in given:
                    values[name] = field.shape.of_plain(given[name])
                elif field.default is MISSING and isinstance(field.shape, Optional):
                    values[name] = None
                elif field.default is MISSING:
                    raise Unfit("there", MISSING)
        except Unfit as error:
            error.path.append(name)
            raise
        try:
            return self._make(values)
        except (TypeError, ValueError) as error:
            raise Unfit(f"{self.kind.__name__} ({error})", given) from None
