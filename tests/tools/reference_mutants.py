"""The page of `docs/reference/` about the mutation gate: which known bugs the simulator has to find, and found."""

import json
from typing import Any

from simulation.gate import FOUND
from simulation.mutants import catalog

from .reference_pages import NOTE, table


def mutants() -> str:
    """Every mutant: name, bug, scenario, broken promise, and the seeds until it was found."""
    found: dict[str, Any] = json.loads(FOUND.read_text())
    whole, seeds = found["whole"], found["seeds"]
    originals = [name for name in catalog.MUTANTS if name.startswith(("#", "PR "))]
    rows = [
        (one.name, one.bug, one.scenario, one.invariant, str(seeds.get(one.name, "not measured")))
        for one in catalog.MUTANTS.values()
    ]
    return (
        f"{NOTE}# Mutants\n\n"
        f"`make mutants` shows that the simulator finds bugs. It switches on {len(rows)} bugs in the production\n"
        f"classes, one by one: {len(originals)} known bugs of Pulsar and BookKeeper, and {len(rows) - len(originals)}"
        " of our own. Seeds run until one\n"
        "breaks [the promise](../RELIABILITY.md#the-promises) that was named beforehand. A violation of another\n"
        "promise does not count. The same seeds must pass without a mutant.\n\n"
        f"The gate last ran whole on {whole['day']}, at `{whole['commit']}`, and found each of the"
        f" {whole['mutants']} mutants that there were.\n"
        "Mutants that came later were measured when they came. Whatever joins a run can change which seed is the\n"
        "first. `python tests/simulation/gate.py --record` measures again.\n\n"
        "The *scenario* says which runs look for the mutant: `ledgers` alone, a whole `cluster`, or clusters that\n"
        "always have one kind of workload.\n\n"
        + table(("mutant", "bug", "scenario", "promise", "seeds until it is found"), rows)
    )
