"""Errors as an operator sees them: one line that names the error, and status 1; never a traceback."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

from ...protocol.errors import ClusterError, MagnetarError, SettingError

PIPE_CLOSED_STATUS = 141
"""What a shell reports for a process that died of SIGPIPE."""
UNNAMED = (ClusterError, SettingError, PermissionError)
"""Errors whose message says it all. Of others, the line names the class as a client would catch it."""

errors = Console(stderr=True)


@contextmanager
def clear_errors() -> Generator[None]:
    """Turn errors that the operator can mend into one line."""
    try:
        yield
    except BrokenPipeError as error:
        # What is still buffered has no reader: without this the interpreter fails again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(PIPE_CLOSED_STATUS) from error
    except (MagnetarError, OSError) as error:
        _show(_line(error))
        raise typer.Exit(1) from error
    except Exception as error:
        if _is_of_ray(error, "RayActorError"):
            _show("the cluster does not answer at the moment: its coordinator is started again, or gone. Try again")
        elif _is_of_ray(error, "RayError") and not _is_of_ray(error, "RayTaskError"):  # that is a defect of ours
            _show(f"Ray reports {_line(error)}")
        else:
            raise
        raise typer.Exit(1) from error


def _show(line: str) -> None:
    errors.print(f"[red]magnetar:[/red] {escape(line)}", highlight=False, soft_wrap=True)


def _is_of_ray(error: Exception, name: str) -> bool:
    """Whether it is Ray's error of this name. Most commands never load Ray."""
    found = sys.modules.get("ray.exceptions")
    return found is not None and isinstance(error, getattr(found, name))


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UNNAMED) else f"{type(error).__name__}: {text}"
