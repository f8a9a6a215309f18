"""What all scenarios share: how a seed is run in a loop of its own, and what comes of it."""

import asyncio
import gc
import inspect
import logging
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from .loop import PROCESS, START_S, SimLoop, Stuck
from .transcript import Transcript


@dataclass
class Outcome:
    """What one seed gave. `violations` is empty for a good run."""

    seed: int
    unseed: int = 0
    violations: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    virtual_s: float = 0.0
    real_s: float = 0.0


class Judge(Protocol):
    """A scenario's history, as far as every run needs it."""

    violations: list[str]
    counts: dict[str, int]

    def violated(self, sentence: str) -> None: ...


Prepared = tuple[Coroutine[Any, Any, None], Callable[[], object]]
"""A scenario that is about to run, and what its unseed is drawn from at the end, beside time and chance."""


def run_seed(
    seed: int,
    history: Judge,
    prepare: Callable[[SimLoop, Random, ExitStack], Prepared],
    transcript: Transcript | None = None,
) -> Outcome:
    """Run one seed. `prepare` gets the loop, the seed's chance, and a stack for what watches the run."""
    began = time.perf_counter()
    _set_the_past_apart()
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    transcript = transcript or Transcript()
    transcript.begin(loop)
    gc.disable()  # finalizers run at moments that no seed decides
    try:
        unseed = _run(loop, seed, history, prepare, transcript)
    finally:
        transcript.end()
        tear_down(loop)
        gc.enable()
    outcome = Outcome(seed, unseed, history.violations, dict(history.counts))
    outcome.virtual_s = loop.now - START_S
    outcome.real_s = time.perf_counter() - began
    return outcome


def _run(
    loop: SimLoop,
    seed: int,
    history: Judge,
    prepare: Callable[[SimLoop, Random, ExitStack], Prepared],
    transcript: Transcript,
) -> int:
    """The run itself, in a frame of its own: when it ends nothing but the loop holds on to the nodes. Returns the
    unseed."""
    random = Random(seed)
    with ExitStack() as watched:
        scenario, evidence = prepare(loop, random, watched)
        try:
            loop.run_until_complete(loop.create_task(scenario))
        except AssertionError as error:
            history.violated(str(error))
        except Stuck as error:
            history.violated(f"I8: {error}")
        except (Exception, asyncio.CancelledError) as error:
            transcript.note("the simulator", "".join(traceback.format_exception(error)))
            history.violated(f"the scenario failed: {error!r}")
        loop.sweep_all()
        for failure in (*loop.failures, *transcript.unexpected):
            history.violated(f"unexpected: {failure}")
        return zlib.crc32(repr((loop.handles_run, loop.now, random.random(), evidence())).encode())


_apart: list[bool] = []


def _set_the_past_apart() -> None:
    """What was there before the first run is not looked through again after each."""
    if not _apart:
        _apart.append(True)
        gc.collect()
        gc.freeze()


def tear_down(loop: SimLoop) -> None:
    """Let go of everything without running it.

    A coroutine that waits for others in a `finally` cannot do so when it is taken apart, and Python reports that. It
    happens nowhere else: a service that closes cancels its tasks, and its loop runs until they have ended.
    """
    told, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        _let_go(loop)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    finally:
        sys.unraisablehook = told
    loop.close()
    logging.disable(logging.NOTSET)


def _let_go(loop: SimLoop) -> None:
    """A frame of its own: when it ends no variable holds on to a task, which would be taken apart later."""
    PROCESS.set(None)
    logging.disable(logging.CRITICAL)
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        begun = task.get_coro()
        if inspect.iscoroutine(begun) and inspect.getcoroutinestate(begun) == inspect.CORO_CREATED:
            begun.close()  # its process was killed before its first step; unclosed, it would complain in a later test
    loop.set_exception_handler(lambda loop, context: None)
    loop.abandon()
    asyncio.set_event_loop(None)
