"""A transcript: the steps of one run of a scenario, and what was seen at each, as lines of text.

    == the second producer of that name
    error ProducerBusy
    # text: Producer with name 'a' is already connected to topic

A line that begins with `#` tells people more. It is not compared.
"""

from dataclasses import dataclass, field

HEAD = "-- "
STEP = "== "
COMMENT = "#"


@dataclass
class Step:
    """One step. `label` says what was done."""

    label: str
    lines: list[str] = field(default_factory=list)

    @property
    def compared(self) -> list[str]:
        """The lines that both servers must agree on."""
        return [line for line in self.lines if not line.startswith(COMMENT)]


class Transcript:
    """See the module."""

    def __init__(self, head: str, steps: list[Step] | None = None) -> None:
        self.head = head
        self.steps = steps or []

    def step(self, label: str) -> Step:
        """Begin a step."""
        made = Step(label)
        self.steps.append(made)
        return made

    def __str__(self) -> str:
        lines = [HEAD + line for line in self.head.splitlines()]
        for step in self.steps:
            lines += ["", STEP + step.label, *step.lines]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Transcript":
        """A transcript out of its text."""
        made = cls("\n".join(line.removeprefix(HEAD) for line in text.splitlines() if line.startswith(HEAD)))
        for line in text.splitlines():
            if line.startswith(STEP):
                made.step(line.removeprefix(STEP))
            elif line and not line.startswith(HEAD):
                made.steps[-1].lines.append(line)
        return made
