"""What the person of a site has accepted: one recipe, with its columns; and how often it was used. Kept at the site."""

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

from partita.errors import MalformedMessage, PolicyRefusal
from partita.foundation.fields import Check, anything, entries, fields, items, text, whole
from partita.foundation.files import MOST_SETTINGS, read_json, replace_file
from partita.foundation.foreign import parse_object
from partita.site.policy import UNCOUNTED, Policy
from partita.wire.base_recipe import KEYS, SECTIONS

# The parts of a recipe that decide what is read, and what leaves. When a server asks whom is its own affair.
PINNED = (*SECTIONS, *KEYS)
# Questions that are answered in one form under one approval: two that differ a little would tell what a few rows are.
ONCE = ("outline", "tabulate")
# How often a server may say something else of what sites have agreed on, under one approval: whether a table can be
# read that way is something about it.
MOST_AGREED = 10
# The most letters of a recipe.
LONGEST = 100_000
Pinned = dict[str, Any]
SECTION = entries(anything)
RECIPE = fields({}, {name: SECTION for name in PINNED if name != "seed"} | {"seed": whole(0, 2**32 - 1)})
PROPOSED = fields({"recipe": RECIPE})
ACCEPTED = fields({"recipe": RECIPE, "name": text(100)}, {"digest": text(64)})
USED = fields(
    {"name": text(100)},
    {"refine": whole(), "questions": whole(), "agreed": items(text(64)), **dict.fromkeys(ONCE, text(64))},
)


class Consent:
    """What the person of a site has accepted, and how often that has been made use of."""

    def __init__(self, folder: Path):
        run = folder / "run"
        self._folder = folder
        self._proposed, self._accepted, self._used = (run / f"{name}.json" for name in ("proposed", "accepted", "used"))

    @property
    def proposed(self) -> Pinned | None:
        """What the server asked for last without being answered."""
        return (_read(self._proposed, PROPOSED) or {}).get("recipe")

    @property
    def accepted(self) -> Pinned | None:
        row = _read(self._accepted, ACCEPTED) or {}
        recipe: Pinned | None = row.get("recipe")
        # An earlier version wrote no digest.
        if recipe is not None and row.get("digest", digest_recipe(recipe)) != digest_recipe(recipe):
            raise _unreadable(self._accepted, "is not what was approved")
        return recipe

    def accept(self, recipe: Pinned) -> None:
        """Accept a recipe: from now on it is answered, and nothing else; counting begins anew."""
        _write(self._accepted, {"recipe": recipe, "digest": digest_recipe(recipe), "name": uuid.uuid4().hex})
        self._proposed.unlink(missing_ok=True)

    def check(self, text: str, accepts: bool = False) -> None:
        """Check that a recipe is the accepted one; the first one is accepted here, if that is what the person wants."""
        asked = pinned(text)
        try:
            accepted = self.accepted
        except PolicyRefusal:
            _write(self._proposed, {"recipe": asked})
            raise
        if accepted is None and accepts:
            self.accept(asked)
        elif accepted is None or digest_recipe(accepted) != digest_recipe(asked):
            _write(self._proposed, {"recipe": asked})
            differ = [name for name in PINNED if _text_of(accepted or {}, name) != _text_of(asked, name)]
            what = (
                "nothing has been approved here yet"
                if accepted is None
                else f"the server asks under another recipe than the approved one: it differs in {', '.join(differ)}"
            )
            advice = f"to look at what is proposed, and approve it: partita site approve {self._folder}"
            raise PolicyRefusal("approval", what, advice)

    def count(self, kind: str, policy: Policy) -> None:
        """Count what is about to be answered; refused, if that is more than the policy allows."""
        if kind in UNCOUNTED:
            return
        key, counted, most = (
            ("most_tasks", "refine", policy.most_tasks)
            if kind == "refine"
            else ("most_questions", "questions", policy.most_questions)
        )
        used = self._read_used()
        number = used.get(counted, 0) + 1
        if number > most:
            raise PolicyRefusal(
                key,
                f"the server has asked {most} times already",
                f"raise {key} in [policy] of site.toml, if that is right",
            )
        _write(self._used, {**used, counted: number})

    def pin(self, kind: str, question: str) -> None:
        """Check that a question that is answered in one form is the one that was answered before, if any was."""
        if kind not in ONCE:
            return
        used, digest = self._read_used(), hashlib.sha256(question.encode()).hexdigest()
        if used.get(kind, digest) != digest:
            # What is proposed is the same again: counting begins anew with that.
            _write(self._proposed, {"recipe": self.accepted})
            advice = f"if it may ask anew, approve the recipe again: partita site approve {self._folder}"
            raise PolicyRefusal(
                "approval", f"the server has asked {kind!r} in another form under this approval", advice
            )
        if kind not in used:
            _write(self._used, {**used, kind: digest})

    def note_agreed(self, agreed: bytes | None) -> None:
        """Note what the server says of what sites have agreed on; refused, if it has said too many different things."""
        if agreed is None:
            return
        used, digest = self._read_used(), hashlib.sha256(agreed).hexdigest()
        known = used.get("agreed", [])
        if digest in known:
            return
        if len(known) >= MOST_AGREED:
            _write(self._proposed, {"recipe": self.accepted})
            advice = f"if it may go on, approve the recipe again: partita site approve {self._folder}"
            raise PolicyRefusal(
                "approval", f"the server has said {MOST_AGREED} different things of what sites have agreed on", advice
            )
        _write(self._used, {**used, "agreed": [*known, digest]})

    def _read_used(self) -> dict[str, Any]:
        """What has been made use of since the latest approval."""
        name = (_read(self._accepted, ACCEPTED) or {}).get("name")
        used = _read(self._used, USED) or {}
        return used if used.get("name") == name else {"name": name}


def pinned(text: str) -> Pinned:
    """The part of a recipe that a site pins."""
    if len(text) > LONGEST:
        raise MalformedMessage(f"recipe: is longer than {LONGEST} letters")
    try:
        tables = parse_object(text)
        found = {name: tables[name] for name in PINNED if name in tables}
        RECIPE(found, "recipe")
        return found
    except ValueError:
        raise MalformedMessage("recipe: cannot be read") from None


def _text_of(recipe: Pinned, name: str) -> str:
    """A section as it is written: 1 is not true, though Python says that they are equal."""
    return json.dumps(recipe.get(name), sort_keys=True)


def digest_recipe(recipe: Pinned) -> str:
    """What tells one recipe from another."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def _write(path: Path, row: dict[str, Any]) -> None:
    replace_file(path, json.dumps(row).encode())


def _read(path: Path, check: Check) -> dict[str, Any] | None:
    try:
        row = read_json(path, MOST_SETTINGS)
        check(row, path.stem)
        return row
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from None


def _unreadable(path: Path, problem: str) -> PolicyRefusal:
    advice = f"{path}: {problem}: approve the recipe again, with partita site approve"
    return PolicyRefusal("approval", "what was approved cannot be read at the site", advice)
