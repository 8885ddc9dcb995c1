"""What a federation's server may ask a site, and the name under which messages of both sides travel."""

from typing import Literal

RECORD = "partita"
Question = Literal["about", "refine", "evaluate"]
