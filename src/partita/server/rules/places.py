"""Gradients of all sites at the same place, from what each sends of where it was."""

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

# How many places are waited for; what slow sites would have sent from earlier ones is given up.
MOST_OPEN = 20


@dataclass
class Place:
    """A location, and the sum of the gradients there, of the sites that have been heard."""

    location: np.ndarray
    gradient: np.ndarray
    heard: set[int] = field(default_factory=set)


@dataclass
class Sent:
    """What a site sent last: the number of the place where it was, that location, and its gradient there."""

    number: int
    location: np.ndarray
    gradient: np.ndarray


@dataclass
class Places:
    """All places where locations were, in order, and what sites sent from there.

    Sites that take turns, or are of different speeds, do not all see every place. A gradient at a place that a site has
    passed over is taken to lie between what it sent before and after. So gradients of different places are never mixed
    up, whatever the schedule, and a difference of two places is that of all sites.
    """

    sites: int
    latest: dict[int, Sent] = field(default_factory=dict)
    # Places that not all sites have been heard from, by number; and at which version each began.
    open: dict[int, Place] = field(default_factory=dict)
    began: list[int] = field(default_factory=list)
    version: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every site has sent a gradient."""
        return len(self.latest) == self.sites

    @property
    def is_current(self) -> bool:
        """Whether what every site sent last is from where locations are now."""
        return self.is_complete and all(sent.number == len(self.began) - 1 for sent in self.latest.values())

    def begin(self, location: np.ndarray) -> None:
        """Locations are elsewhere from now on."""
        self.open[len(self.began)] = Place(location, np.zeros_like(location))
        self.began.append(self.version)
        while len(self.open) > MOST_OPEN:
            del self.open[min(self.open)]

    def number_at(self, staleness: int) -> int:
        """The place where locations were before the latest so many updates."""
        return bisect_right(self.began, self.version - staleness) - 1

    def hear(self, site: int, number: int, location: np.ndarray, gradient: np.ndarray) -> None:
        """A site sends a gradient from a place."""
        now = Sent(number, location, gradient)
        before = self.latest.get(site, now)
        self.latest[site] = now
        for passed, place in self.open.items():
            if passed == number:
                place.location = location
            if passed <= number and site not in place.heard:
                place.gradient = place.gradient + _between(before, now, place.location)
                place.heard.add(site)

    def finish(self) -> list[Place]:
        """Places that every site has now been heard from, oldest first."""
        done = [number for number, place in sorted(self.open.items()) if len(place.heard) == self.sites]
        return [self.open.pop(number) for number in done]

    def total(self) -> np.ndarray:
        """The sum of what every site sent last, wherever it was."""
        total: np.ndarray = np.sum([sent.gradient for sent in self.latest.values()], axis=0)
        return total


def _between(before: Sent, now: Sent, location: np.ndarray) -> np.ndarray:
    """The gradient at a location on the way from one place to another."""
    way = now.location - before.location
    length = float(np.dot(way, way))
    if location is now.location or length == 0:
        return now.gradient
    share = np.clip(np.dot(location - before.location, way) / length, 0, 1)
    between: np.ndarray = before.gradient + way.dtype.type(share) * (now.gradient - before.gradient)
    return between
