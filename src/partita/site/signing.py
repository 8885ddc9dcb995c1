"""Signs what leaves a federation's site, with the site's own key."""

from typing import Any

from partita.errors import PartitaError
from partita.foundation.keys import sign
from partita.site.audit import REFUSED
from partita.site.gate import Site
from partita.site.node import Answer
from partita.site.settings import read_site
from partita.wire.signing import RUN, SIGNATURE, Statement


def sign_answers(site: Site, answer: Answer) -> Answer:
    """What a site answers, each reply with its signature beside it.

    Args:
        site: the site, which knows what it has noted of its latest reply.
        answer: what it answers.
    """

    def signed(kind: str, asked: dict[str, Any]) -> dict[str, Any]:
        reply = answer(kind, asked)
        try:
            settings, run, about = read_site(site.folder), str(asked.get(RUN, "")), site.noted
            content = reply["payload"] if "payload" in reply else reply["error"].encode()
            refused = about.outcome == REFUSED or "payload" not in reply
            told = Statement.of(kind, run, settings.name, about.recipe, about.version, content, refused)
            return {**reply, SIGNATURE: sign(settings.key, told.signed)}
        except PartitaError:
            # Without settings or a key there is no signature, and the server takes no answer without one.
            return reply

    return signed
