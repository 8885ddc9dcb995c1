"""What both sides of a federation call things; imports nothing heavy, because Flower starts a process per message."""

from typing import Literal

RECORD = "partita"
Question = Literal["about", "refine", "evaluate"]


def printable(text: str) -> str:
    """What the other side says, to be shown on terminals: no control characters, and not without end."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:1000])
