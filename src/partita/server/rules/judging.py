"""What is learnt of sites from how far their values are from what their models had promised."""

from collections.abc import Sequence
from dataclasses import dataclass

from partita.server.rules.quadratics import TINY, Judgement

# So often in a row a site has to lose much of what all models promised, and so much more steeply on a way that is so
# many times shorter in nats, before it is not believed.
MOST_LOSSES, STEEPER, SHORTER = 3, 3.0, 16.0
# Models may be followed to where what they leave out is this part of their quadratic terms, but never further than so
# many times the longest way that this was learnt from.
LEFT_OUT, MUCH_FURTHER = 0.3, 1e4


@dataclass(frozen=True)
class Bend:
    """What a site's model leaves out, and its quadratic term, per nat of the way from which they are known.

    Of a function with three derivatives, the one grows with the length of a way to the power of 3/2 in nats, the other
    in proportion. So where several models lead together, what is left out is ε of their quadratic terms at a length of
    (ε Σ quadratic / Σ |third order|)².
    """

    third_order: float
    quadratic: float
    length: float

    @classmethod
    def of(cls, judged: Judgement) -> "Bend":
        return cls(abs(judged.short) / judged.length**1.5, judged.quadratic / judged.length, judged.length)


def reach_of(bends: Sequence[Bend]) -> float:
    """How far models may be followed together, in nats.

    >>> round(reach_of([Bend(third_order=0.1, quadratic=1.0, length=2.0)]), 9)
    9.0
    """
    third_order = max(sum(bend.third_order for bend in bends), TINY)
    length = (LEFT_OUT * sum(bend.quadratic for bend in bends) / third_order) ** 2
    return min(length, MUCH_FURTHER * max(bend.length for bend in bends))


@dataclass(frozen=True)
class Losses:
    """Ways on which a site's value was far short of its model: the least steep one, in nats lost per nat gone.

    What an honest model leaves out goes with the square of a way, as nats do, or faster; so shorter ways are no
    steeper. What a lie leaves out goes with the way itself, however short that is.
    """

    length: float
    steepness: float
    times: int = 1
    steeper: bool = False

    def add(self, length: float, steepness: float) -> "Losses":
        steeper = length <= self.length / SHORTER and steepness >= STEEPER * self.steepness
        flatter = steepness < self.steepness
        least = (length, steepness) if flatter else (self.length, self.steepness)
        return Losses(*least, self.times + 1, steeper)

    def is_lie(self, held: bool) -> bool:
        """Whether there were enough of them to tell; a site that is held back already has to lose only once more."""
        return self.steeper and (held or self.times >= MOST_LOSSES)
