"""How a study is shown: a progress bar, or JSON lines."""

from collections.abc import Sequence
from typing import TextIO

from partita.foundation.plain import Row, to_json
from partita.studies.runner import Cell, Watch
from partita.telemetry import Progress


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
    """A progress bar over runs."""

    def __init__(self, quiet: bool = False):
        self._bar = Progress("how fast is this machine?", quiet=quiet)
        self._cells = self._finished = 0

    def __enter__(self) -> "Bar":
        self._bar.__enter__()
        return self

    def plan(self, cells: int, finished: int, seconds: float) -> None:
        kept = f", {finished} finished before" if finished else ""
        self._bar.say(
            f"{cells} runs{kept}; about {duration(seconds)} for the rest on this machine. "
            "Ctrl-C stops; the same command goes on."
        )
        # The cell that begins next is the first that is not finished.
        self._cells, self._finished = cells, finished - 1

    def begin(self, cell: Cell) -> None:
        self._finished += 1
        self._bar.show(self._finished, self._cells, "", cell.name)

    def row(self, cell: Cell, row: Row) -> None:
        found = f"error {100 * row['error']:.2f} %" if "error" in row else f"SMSE {row['smse']:.3f}"
        self._bar.show(self._finished, self._cells, f"round {row['round']:.0f}: {found}", cell.name)

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self._bar.show(self._cells, self._cells, "", "finished")
        self._bar.__exit__(*error)
