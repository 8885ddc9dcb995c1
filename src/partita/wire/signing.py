"""What a site signs with each of its replies, so that later anybody with its public key can tell who sent what."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Self

# What a reply's signature and a server's name for its run stand under, beside a payload.
SIGNATURE, RUN = "signature", "run"
# Signed bytes begin with this, so that no signature for anything else is one of a reply: the same key signs the times
# of requests.
BEGIN = b"partita reply\n"
# Bytes of a signature, of any curve.
MOST_SIGNATURE = 500


@dataclass(frozen=True)
class Statement:
    """What a site says that it sends.

    Args:
        kind: what was asked: `refine` of a task, or the name of a question.
        run: the server's own name for its run, which it keeps over restarts.
        site: the site's name.
        recipe: digest of the recipe that the site's person has approved.
        version: how many updates the posterior of a task had taken; None, if it was no task.
        digest: SHA-256 of what is sent.
        refused: whether that are words that say why there is no answer.
    """

    kind: str
    run: str
    site: str
    recipe: str
    version: int | None
    digest: str
    refused: bool = False

    @classmethod
    def of(
        cls, kind: str, run: str, site: str, recipe: str, version: int | None, content: bytes, refused: bool = False
    ) -> Self:
        """The statement about these bytes."""
        return cls(kind, run, site, recipe, version, hashlib.sha256(content).hexdigest(), refused)

    @property
    def signed(self) -> bytes:
        """The bytes that are signed."""
        return BEGIN + json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()
