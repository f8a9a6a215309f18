"""The tables of commands as a part of the command line: `magnetar admin NOUN VERB`.

The verbs of a noun are built when the noun is used, because building all of them takes a moment.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer
from typer.core import TyperGroup

from ...protocol.errors import InvalidConfiguration
from ..terminal.addresses import ADMIN_URL_VARIABLE, Finder, admin_url_of
from ..terminal.failures import clear_errors
from .nouns import NOUNS, absent_noun, absent_verb

if TYPE_CHECKING:
    import typer._click as click  # what typer's classes are typed with

    from .arguments import Argument
    from .command import Command

AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--admin-url",
        envvar=ADMIN_URL_VARIABLE,
        metavar="URL",
        help="The admin HTTP, as http://host:port or https://host:port. By default that of the running cluster.",
    ),
]
VerbAdminUrl = Annotated[
    str | None, typer.Option("--admin-url", metavar="URL", help="The same as before the noun: the admin HTTP.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")]


@dataclass(frozen=True)
class Context:
    """What the verbs are told by what stands before the noun."""

    finder: Finder
    url: str | None


class _Nouns(dict[str, object]):
    """The groups of verbs by noun, each built when it is first asked for."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(NOUNS))

    def __getitem__(self, noun: str) -> object:
        if super().__getitem__(noun) is None:
            self[noun] = typer.main.get_command(_noun_app(noun))
        return super().__getitem__(noun)

    def get(self, noun: str, default: object = None) -> object:  # type: ignore[override]
        return self[noun] if noun in self else default


class _GroupThatNamesAbsent(TyperGroup):
    """A group of commands that says which of `pulsar-admin`'s commands Magnetar does not have, and why."""

    @staticmethod
    def absent(name: str, /) -> str | None:
        """The feature of Pulsar to which a command belongs that is not here; None for a name that nobody knows."""
        raise NotImplementedError

    def resolve_command(
        self, ctx: "click.Context", args: list[str]
    ) -> tuple[str | None, "click.Command | None", list[str]]:
        feature = self.absent(args[0]) if args and args[0] not in self.commands else None
        if feature is not None:
            ctx.fail(f"Magnetar has no {feature}, so there is no `{ctx.command_path} {args[0]}`.")
        return super().resolve_command(ctx, args)


class NounGroup(_GroupThatNamesAbsent):
    """`magnetar admin`."""

    absent = staticmethod(absent_noun)

    def __init__(self, **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self.commands = _Nouns()  # type: ignore[assignment]


class VerbGroup(_GroupThatNamesAbsent):
    """`magnetar admin NOUN`."""

    absent = staticmethod(absent_verb)


admin = typer.Typer(
    cls=NounGroup,
    help="Manage the cluster, with the nouns and verbs of `pulsar-admin`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@admin.callback()
def options(context: typer.Context, admin_url: AdminUrl = None) -> None:
    """Manage the cluster, with the nouns and verbs of `pulsar-admin`."""
    context.obj = Context(context.ensure_object(Finder), admin_url)


def _noun_app(noun: str) -> typer.Typer:
    from .commands import of_noun

    app = typer.Typer(
        name=noun, help=NOUNS[noun], no_args_is_help=True, add_completion=False, cls=VerbGroup, rich_markup_mode=None
    )

    @app.callback()
    def group() -> None:  # a group stays one, also with a single verb
        pass

    group.__doc__ = NOUNS[noun]
    for command in of_noun(noun):
        app.command(command.verb, help=command.help)(_function(command))
    return app


def _function(command: "Command") -> Callable[..., None]:
    """A function with the parameters of a command, as the command line wants it."""

    def run(context: typer.Context, admin_url: str | None, as_json: bool, **given: object) -> None:
        from .output import show, show_json
        from .session import AdminSession

        with clear_errors():
            found = context.ensure_object(Context)
            url, finder = admin_url or found.url, found.finder
            at = admin_url_of(finder, url)  # first: what it finds through Ray, Ray is asked about next
            session = AdminSession(at, finder.tls, headers=finder.credential.headers(through_ray=not url))
            answer = command.execute(session, read(command, given))
            if as_json:
                show_json(answer)
            else:
                show(answer, command.table)

    parameters = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(_parameter(argument) for argument in command.arguments),
        inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson),
        inspect.Parameter("admin_url", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=VerbAdminUrl),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def read(command: "Command", given: Mapping[str, object]) -> dict[str, object]:
    """The values of what was given as text. Raises InvalidConfiguration, which names the option."""
    values: dict[str, object] = {}
    for argument in command.arguments:
        found = given[argument.name]
        if found is None or found == []:
            continue
        try:
            if argument.switch:
                values[argument.name] = found
            elif argument.many:
                texts = cast("list[str]", found)
                values[argument.name] = [argument.read(part) for text in texts for part in text.split(",")]
            else:
                values[argument.name] = argument.read(cast("str", found))
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"{'/'.join(argument.flags) or argument.name.upper()}: {error}") from None
    return values


def _parameter(argument: "Argument") -> inspect.Parameter:
    kind = bool if argument.switch else list[str] if argument.many else str
    if not argument.flags:
        wanted = kind if argument.required else kind | None
        annotation: object = Annotated[wanted, typer.Argument(help=argument.help)]
    else:
        metavar = None if argument.switch else argument.flags[-1].lstrip("-").upper()
        option = typer.Option(*argument.flags, help=argument.help, metavar=metavar)
        annotation = Annotated[kind if argument.required else kind | None, option]
    default = inspect.Parameter.empty if argument.required else argument.default
    return inspect.Parameter(argument.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
