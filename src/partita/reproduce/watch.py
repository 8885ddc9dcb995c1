"""How a study is shown: a progress bar, or JSON lines."""

from collections.abc import Sequence
from typing import Any, TextIO

from partita.reproduce.study import Cell, Watch
from partita.telemetry import Row, to_json


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


class Lines(Watch):
    """One JSON object per row, all with the same keys."""

    def __init__(self, stream: TextIO, keys: Sequence[str]):
        self.stream, self.keys = stream, keys

    def _write(self, row: Row) -> None:
        self.stream.write(to_json(row) + "\n")
        self.stream.flush()

    def plan(self, cells: int, finished: int, seconds: float) -> None:
        self._write({"event": "plan", "runs": cells, "finished": finished, "seconds": round(seconds)})

    def row(self, cell: Cell, row: Row) -> None:
        self._write({key: row.get(key) for key in self.keys})


class Bar(Watch):
    """A Rich progress bar on standard error."""

    def __enter__(self) -> "Bar":
        from rich import progress
        from rich.console import Console

        columns: Any = (
            progress.TextColumn("{task.description:<32}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}"),
            progress.TimeElapsedColumn(),
        )
        self._bar = progress.Progress(*columns, console=Console(stderr=True))
        self._bar.start()
        self._task = self._bar.add_task("", total=None, note="")
        self._begun = 0
        return self

    def plan(self, cells: int, finished: int, seconds: float) -> None:
        kept = f", {finished} finished before" if finished else ""
        self._bar.console.print(
            f"{cells} runs{kept}; about {duration(seconds)} for the rest on this machine. "
            "Ctrl-C stops; the same command goes on."
        )
        self._bar.update(self._task, total=cells, completed=finished)
        self._begun = finished

    def begin(self, cell: Cell) -> None:
        self._bar.update(self._task, description=cell.name, completed=self._begun, note="")
        self._begun += 1

    def row(self, cell: Cell, row: Row) -> None:
        found = f"error {100 * row['error']:.2f} %" if "error" in row else f"SMSE {row['smse']:.3f}"
        self._bar.update(self._task, note=f"round {row['round']:.0f}: {found}")

    def __exit__(self, *_: object) -> None:
        self._bar.update(self._task, completed=self._begun)
        self._bar.stop()
