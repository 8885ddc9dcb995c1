"""What both sides of a federation call things."""

from typing import Literal

RECORD = "partita"
Question = Literal["about", "refine", "evaluate"]
