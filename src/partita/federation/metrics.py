"""Prometheus metrics of a federation's server, over HTTP for this machine only."""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from partita.errors import InputError
from partita.federation.folders import ServerFolder
from partita.federation.state import read_state
from partita.foundation.checks import import_extra
from partita.foundation.loopback import LoopbackHandler, LoopbackServer
from partita.foundation.plain import Row

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# What a state says of the run, and of each site: whether it only grows, and what it is.
METRICS = {
    "version": ("counter", "Updates that the posterior has taken."),
    "messages": ("counter", "Tasks and updates."),
    "bytes_down": ("counter", "Bytes of densities sent to sites."),
    "bytes_up": ("counter", "Bytes of densities that came from sites."),
    "accepted": ("gauge", "Share of the last proposed change that was accepted."),
    "free_energy": ("gauge", "Of the posterior, as sites reported it last."),
}
SITE_METRICS = {
    "ready": ("gauge", "Whether the site can be asked."),
    "updates": ("counter", "Updates that came from the site since the server was started."),
    "staleness": ("gauge", "Updates that were folded while the site was at work, last time."),
    "last_seen": ("gauge", "When the site answered last, in seconds since 1970."),
}


class StateCollector:
    """The state of a server as Prometheus' collector of metrics; what is not known is left out."""

    def __init__(self, state: Row):
        self._state = state

    def collect(self) -> Iterator[Any]:
        client = import_extra("prometheus_client.core", "prometheus-client", "flower")
        kinds = {"counter": client.CounterMetricFamily, "gauge": client.GaugeMetricFamily}
        state = self._state
        yield client.GaugeMetricFamily("partita_serving", "Whether the server runs.", float(state["serving"]))
        is_stalled = float(state["state"] == "stalled")
        yield client.GaugeMetricFamily("partita_stalled", "Whether nobody has answered for too long.", is_stalled)
        for name, (kind, words) in METRICS.items():
            if state.get(name) is not None:
                yield kinds[kind](f"partita_{name}", words, float(state[name]))
        for name, (kind, words) in SITE_METRICS.items():
            metric = kinds[kind](f"partita_site_{name}", words, labels=["site"])
            for site in state["sites"]:
                if site.get(name) is not None:
                    metric.add_metric([site["site"]], float(site[name]))
            if metric.samples:
                yield metric


def format_metrics(state: Row) -> str:
    """The state in Prometheus' text format."""
    client = import_extra("prometheus_client", "prometheus-client", "flower")
    text: bytes = client.generate_latest(StateCollector(state))
    return text.decode()


def serve_metrics(folder: ServerFolder, port: int) -> LoopbackServer:
    """Prometheus metrics at http://127.0.0.1:port/metrics, while the server runs."""

    class Handler(LoopbackHandler):
        def show(self, path: str) -> None:
            if path != "/metrics":
                self.answer(HTTPStatus.NOT_FOUND, "There is only /metrics here.\n")
                return
            self.answer(HTTPStatus.OK, format_metrics(read_state(folder)), CONTENT_TYPE)

    try:
        return LoopbackServer(port, Handler)
    except (OSError, OverflowError) as error:
        raise InputError(f"--metrics {port}: {getattr(error, 'strerror', error)}: use another port") from None
