"""The data of some sites, where they are: in this process, in an actor of a cluster, in a process of a site's own."""

from collections.abc import Mapping
from typing import Any

from partita.designs.design import Design, Reading
from partita.designs.saving import pack_terms
from partita.errors import EngineError, PartitaError, ShardError, reason
from partita.models import AbstractModel
from partita.shards import Shard, padded, unpadded
from partita.site.columns import arrange_shard
from partita.site.reading import SiteRows, part_rows, read_rows, scale_rows, weigh_table
from partita.site.worker import Worker
from partita.wire.job import Job
from partita.wire.naming import SiteNames


class Holder:
    """Holds the data of some sites, answers questions about them (`site.answering`), and does the work of their tasks.

    Data are what a model takes, tables, files, or functions that load either. Functions are called here and nowhere
    else, once before the work begins.

    Args:
        sources: where each site's data come from, by its number.
        names: what sites are called.
        model: whose data they are, as far as that is known before sites are asked.
        secret: what digests of data are made with, where they are not to be found out by trying.
    """

    def __init__(
        self,
        sources: Mapping[int, Any],
        names: SiteNames | None = None,
        model: AbstractModel | None = None,
        secret: bytes = b"",
    ):
        self.sources = dict(sources)
        self.names = SiteNames() if names is None else names
        self.model, self.secret = model, secret
        self._raw: dict[int, Any] = {}
        self._tables: dict[int, tuple[str | None, Any]] = {}
        self._rows: dict[int, tuple[Any, SiteRows]] = {}
        self._shards: dict[int, Shard] = {}
        self._added: frozenset[int] = frozenset()
        self._worker: Worker | None = None

    def raw(self, site: int) -> Any:
        """A site's data as they were given or loaded."""
        if not callable(self.sources[site]):
            return self.sources[site]
        if site not in self._raw:
            self._raw[site] = self._load(site)
        return self._raw[site]

    def _load(self, site: int) -> Any:
        try:
            return self.sources[site]()
        except PartitaError:
            raise
        except Exception as error:
            raise ShardError(site, "data", f"the function that loads them failed with {reason(error)}") from error

    def table(self, site: int, weights: str | None = None) -> Any:
        """A site's table as a frame, rows repeated as their weights say."""
        if site not in self._tables or self._tables[site][0] != weights:
            self._tables[site] = weights, weigh_table(self.names.of(site), self.raw(site), weights)
        return self._tables[site][1]

    def rows(self, site: int, reading: Reading) -> SiteRows:
        """All complete rows of a site's table, as a formula reads them; kept until the work begins."""
        read_as = reading.weights, _key(reading.design)
        if site not in self._rows or self._rows[site][0] != read_as:
            frame = self.table(site, reading.weights)
            self._rows[site] = read_as, read_rows(self.names.of(site), frame, reading.design)
        return self._rows[site][1]

    def parts(self, site: int, reading: Reading) -> tuple[SiteRows, SiteRows]:
        """What is fitted of a site's rows, and what is held out."""
        return part_rows(self.rows(site, reading), reading, self.names.name(site))

    @property
    def worker(self) -> Worker:
        """Who does the work, once sites have agreed on sizes."""
        if self._worker is None:
            raise EngineError("sites have no job yet: open the engine before tasks or posteriors are sent")
        return self._worker

    def load(self, job: Job, added: Mapping[int, Any]) -> dict[int, int]:
        """Check all data, those of sites that the model adds to a run too; how many rows each site has."""
        self._job, self.names = job, job.names
        self.sources |= added
        self._added = frozenset(added)
        self._shards = {site: job.model.shard(site, self._read(job, site)) for site in sorted(self.sources)}
        self._raw, self._tables, self._rows = {}, {}, {}
        return {site: int(shard.rows) for site, shard in self._shards.items()}

    def _read(self, job: Job, site: int) -> Any:
        """A site's data as the model takes them."""
        if site in self._added:
            return self.sources[site]
        if job.reading is None:
            return arrange_shard(site, self.raw(site), job.columns)
        fitted, _ = self.parts(site, job.reading)
        first = job.reading.first_groups
        # Of a site that came later than others, groups are counted from 0: they meet no others here.
        number = None if not first else first[site] if site < len(first) else 0
        return scale_rows(fitted, job.reading.design, number)

    def prepare(self, sizes: Mapping[int, int]) -> None:
        """Pad to what all sites of the run have agreed on; anew, if that has changed since data were loaded."""
        found = self._shards
        if not found:
            shards = self.worker.shards
            if all(shard.capacity == sizes[site] for site, shard in shards.items()):
                return
            found = {site: unpadded(shard) for site, shard in shards.items()}
        shards = {site: padded(shard, sizes[site]) for site, shard in found.items()}
        self._worker, self._shards = Worker(self._job, shards), {}


def _key(design: Design) -> Any:
    """What decides how a table is read, units aside."""
    return design.family, design.group, design.columns, pack_terms(design.parsed.left), pack_terms(design.parsed.right)
