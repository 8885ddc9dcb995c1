"""What a model has to know of data before a run, and how it is told: looked at where the data are, used where not."""

from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import numpy as np

from partita.errors import MissingCapability


class Opening(eqx.Module):
    """What most models need not know. `lay_out` and `find_groups` run at a site; nothing else here sees data."""

    @property
    def needs_rows(self) -> bool:
        """Whether it has to see rows of a site to know what it is made of: then `lay_out` looks at them, there."""
        return False

    @property
    def needs_groups(self) -> bool:
        """Whether it has to know how large groups are at all sites: then `find_groups` looks, at each."""
        return False

    @property
    def own_shards(self) -> tuple[Any, ...]:
        """Shards of sites that it adds to a run: of what its prior is beside a density of its family, say."""
        return ()

    def lay_out(self, site: int, raw: Any) -> Any:
        """Find out, at a site, what the model is made of, from that site's data."""
        raise MissingCapability(f"{type(self).__name__} knows what it is made of")

    def with_layout(self, found: Any) -> Self:
        """The model with what `lay_out` found at a site."""
        raise MissingCapability(f"{type(self).__name__} knows what it is made of")

    def find_groups(self, site: int, raw: Any) -> tuple[np.ndarray, int]:
        """Find out, at a site, which groups it has, and how many rows the largest of them has."""
        raise MissingCapability(f"{type(self).__name__} has no groups")

    def with_groups(self, found: Sequence[tuple[np.ndarray, int]]) -> Self:
        """The model with what `find_groups` found at all sites."""
        raise MissingCapability(f"{type(self).__name__} has no groups")
