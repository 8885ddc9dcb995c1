"""What both sides of a federation call things; imports nothing heavy, because Flower starts a process per message."""

from typing import Literal

RECORD = "partita"
Question = Literal["about", "refine", "evaluate"]
