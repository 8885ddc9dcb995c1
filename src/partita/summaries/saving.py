"""A summary in a file: what sites were asked, and what each has answered."""

import base64
from pathlib import Path

from partita.errors import CorruptStorage, StorageError
from partita.foundation.fields import fields, items, text
from partita.foundation.files import read_json, replace_file
from partita.foundation.plain import to_json
from partita.foundation.text import clean
from partita.summaries.table_one import Summary
from partita.wire.answers import AnswerChecks
from partita.wire.codec import decode_answer, decode_question, encode_answer, encode_question
from partita.wire.naming import SiteNames
from partita.wire.questions import Tabulate, TabulateAnswer

# The most bytes of a file, and of a message in it as text.
MOST, MOST_MESSAGE = 200_000_000, 100_000_000
FILE = fields({"question": text(MOST_MESSAGE), "sites": items(items(text(MOST_MESSAGE), 2)), "notes": items(text())})


def write_summary(path: Path, summary: Summary) -> None:
    """Write one file, complete or not at all."""
    row = {
        "question": _to_text(encode_question(summary.question)),
        "sites": [[name, _to_text(encode_answer(Tabulate, answer))] for name, answer in summary.answers.items()],
        "notes": list(summary.notes),
    }
    try:
        replace_file(path, to_json(row).encode(), durable=True)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from None


def read_summary(path: Path) -> Summary:
    """What `write_summary` wrote, checked as answers are when they come."""
    try:
        row = read_json(path, MOST)
        FILE(row, "summary")
        question = decode_question(Tabulate.name, base64.b64decode(row["question"], validate=True))
        names = [name for name, _ in row["sites"]]
        answers = {
            number: decode_answer(Tabulate, base64.b64decode(answer, validate=True))
            for number, (_, answer) in enumerate(row["sites"])
        }
        checked = AnswerChecks(SiteNames(tuple(names))).check(dict.fromkeys(answers, question), answers)
        if len(set(names)) < len(names) or not names or not isinstance(question, Tabulate):
            raise ValueError("sites: expected names, each once")
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except Exception as error:
        raise CorruptStorage(f"{path}: is no summary that Partita writes ({clean(error)})") from None
    known: dict[str, TabulateAnswer] = dict(zip(names, checked.values(), strict=True))
    return Summary(question, known, tuple(row["notes"]))


def _to_text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()
