"""Rules at a site: what an update passes before it leaves. There are none yet; clipping, noise and seals belong here.

They are the counterpart of the server's chain (`server/rules/`): the same two steps, on the other side of the wall,
with randomness that the server cannot know.
"""

from typing import Protocol

from partita.wire.job import Job
from partita.wire.tasks import Task, Update


class SiteRuleState(Protocol):
    """A rule in one run."""

    def apply(self, task: Task, update: Update) -> Update:
        """What leaves the site instead of an update, which answers that task."""
        ...


class SiteRule(Protocol):
    """One step that updates pass before they leave a site, ready for any run."""

    def init(self, job: Job) -> SiteRuleState:
        """The state of this rule in a run."""
        ...
