"""What a site signs with each of its replies, so that later anybody with its public key can tell who sent what."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Self

from partita.foundation.fields import fields, text
from partita.foundation.foreign import parse_object

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


# What a site signs to put another key in the place of its own.
BEGIN_ROTATION = b"partita key\n"
ROTATION = fields({name: text(2000) for name in ("site", "old", "new", "by_old", "by_new")})


@dataclass(frozen=True)
class Rotation:
    """A site's word that another key takes the place of its own, signed with both.

    Args:
        site: the site's name.
        old: the public key that it has had, as SSH writes it.
        new: the one that it will have.
        by_old: the signature with the old one, in base64.
        by_new: the same with the new one, which shows that the site has that.
    """

    site: str
    old: str
    new: str
    by_old: str = ""
    by_new: str = ""

    @property
    def signed(self) -> bytes:
        """The bytes that are signed."""
        told = {"site": self.site, "old": self.old, "new": self.new}
        return BEGIN_ROTATION + json.dumps(told, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Read it from a file that anybody may have written; a ValueError, if it is none."""
        row = parse_object(content)
        ROTATION(row, "rotation")
        return cls(**row)

    def encode(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"
