"""The page on the paper: each of its parts beside our code, tests, commands and figures, and whether it holds.

Rows are data, in docs/data/paper.toml: what is claimed of a part is written there and nowhere else.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from partita.errors import InputError
from partita.foundation.checks import check_one_of
from partita.foundation.settings_files import read_settings_file
from partita.studies.documents import markdown_table, write_sections
from partita.studies.options import Say

ROWS, PAGE = Path("docs/data/paper.toml"), Path("docs/paper.md")
# In the order in which they are counted; the rest of a row says which figures there are.
VERDICTS = ("holds", "holds with a correction", "does not reproduce", "not tried", "no claim of its own")
HEAD = """# The paper, part by part

Bui, Nguyen, Swaroop and Turner, [*Partitioned Variational Inference*](https://arxiv.org/abs/1811.11206) (2018): every
section, property, numbered equation, algorithm, table and figure, where it is here, what checks it, and whether it
holds. All numbers are those that LaTeX gives in the authors' source.

* *Holds*: what the paper says is what the code does, and what the tests or figures named here show.
* *Holds with a correction*: so it is, once a sign, an index or a condition is put right, or but for a part that is
  named.
* *Does not reproduce*: it was tried, and came out otherwise.
* *Not tried*: nothing here has run it, or not as the paper does.
* *No claim of its own*: what it says is said, and checked, elsewhere.

Figures of ours are those that the linked pages record, with the commands that made them; "not recorded" means that a
command exists and no run of it is written down. `partita study paper` writes this page from
[data/paper.toml](data/paper.toml). A test imports every name, looks for every test, parses every command, finds every
figure in the page that it is said to be from, and compares the list of parts with the paper where that is at hand.
"""


@dataclass(frozen=True)
class Entry:
    """What is claimed of some of the paper's parts.

    Args:
        covers: parts, such as "Property 1"; equations and figures may be given as a range, "Eq. 44-68".
        says: what the paper says there.
        verdict: one of `VERDICTS`.
        note: why, where that needs words.
        code: dotted names, or files.
        tests: as pytest names them.
        commands: those that run it.
        ours: our figures, all of them in the pages of `sources`.
        theirs: the paper's.
        pictures: files in docs/, each with what it shows.
    """

    covers: tuple[str, ...]
    says: str
    verdict: str
    note: str = ""
    code: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    ours: str = ""
    sources: tuple[str, ...] = ()
    theirs: str = ""
    pictures: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_one_of(f"{', '.join(self.covers)}: ", VERDICTS, verdict=self.verdict)
        if not self.covers:
            raise InputError(f"covers: expected at least one part of the paper, got none ({self.says})")

    @property
    def parts(self) -> list[str]:
        """All parts that it covers, ranges spelt out."""
        return [part for given in self.covers for part in _spell_out(given)]

    @property
    def title(self) -> str:
        return ", ".join(re.sub(r"-(?=\d+$)", "–", given) for given in self.covers)


def _spell_out(given: str) -> list[str]:
    """
    >>> _spell_out("Eq. 2-4")
    ['Eq. 2', 'Eq. 3', 'Eq. 4']
    """
    found = re.fullmatch(r"(.+ )(\d+)-(\d+)", given)
    if found is None:
        return [given]
    return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[3]) + 1)]


def read_entries(path: Path) -> tuple[dict[str, str], list[Entry]]:
    """The paper's parts with their titles or labels, and the entries in the order of the parts that they begin with."""
    file, found = read_settings_file(path)
    file.check_keys("", found, ("parts", "entries"))
    parts: dict[str, str] = found["parts"]
    entries = [file.build("entries", Entry, table) for table in found["entries"]]
    check_cover(parts, entries)
    order = {part: number for number, part in enumerate(parts)}
    return parts, sorted(entries, key=lambda entry: order[entry.parts[0]])


def check_cover(parts: Mapping[str, str], entries: Sequence[Entry]) -> None:
    """Complain if a part has no entry, or an entry is of no part."""
    covered = [part for entry in entries for part in entry.parts]
    unknown = [part for part in covered if part not in parts]
    missing = [part for part in parts if part not in covered]
    if unknown or missing:
        raise InputError(
            f"{ROWS}: expected entries for the paper's parts and no others, "
            f"got none for {', '.join(missing) or '(all have one)'}, and some for {', '.join(unknown) or '(no other)'}"
        )


def write_paper_page(
    say: Say,
    page: Annotated[Path, Option(help="The page to write.")] = PAGE,
    rows: Annotated[Path, Option(help="The file with the entries.")] = ROWS,
) -> None:
    """Write the page from its rows."""
    parts, entries = read_entries(rows)
    write_sections(
        [HEAD],
        [render_overview(entries), *render_sections(parts, entries), render_index(parts, entries)],
        page,
        lambda section: None,
    )
    say(f"{page}: {len(entries)} entries for {len(parts)} parts")


def render_overview(entries: Sequence[Entry]) -> str:
    """How many verdicts there are of each kind, and all entries that do not simply hold."""
    counts = Counter(entry.verdict for entry in entries)
    lines = [[verdict, str(counts[verdict])] for verdict in VERDICTS]
    found = ["## At a glance", "", markdown_table(["verdict", "entries"], lines)]
    for verdict in VERDICTS[1:4]:
        some = [entry for entry in entries if entry.verdict == verdict]
        if some:
            found += [f"**{verdict.capitalize()}:**", ""]
            found += [f"* {link(entry)}: {escape(entry.says)}" for entry in some] + [""]
    return "\n".join(found)


def anchor(entry: Entry) -> str:
    """The name of an entry on the page: parts have several entries where they claim several things."""
    words = re.findall(r"\w+", f"{entry.covers[0]} {entry.says}".lower())
    return "-".join(words[:9])


def link(entry: Entry, words: str = "") -> str:
    return f"[{words or entry.title}](#{anchor(entry)})"


def escape(text: str) -> str:
    """A star is one: q* is a density."""
    return text.replace("*", r"\*")


def render_sections(parts: Mapping[str, str], entries: Sequence[Entry]) -> Iterator[str]:
    """The entries below the sections that they begin in."""
    for section, own in group_entries(parts, entries).items():
        titles = [f"{part}: {parts[part]}" for part in parts if part.startswith(f"{section}.")]
        head = [f"## {section}. {parts[section]}", "", *([f"*{'; '.join(titles)}.*", ""] if titles else [])]
        yield "\n".join([*head, *map(render_entry, own)])


def group_entries(parts: Mapping[str, str], entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The entries of every section without a dot in its number."""
    section, places = "", {}
    for part in parts:
        if re.fullmatch(r"(Section|Appendix) \w+", part):
            section = part
        places[part] = section
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(places[entry.parts[0]], []).append(entry)
    return found


def render_entry(entry: Entry) -> str:
    """One entry: what the paper says, the verdict, and where all of it is."""
    lines = [f"### {entry.title} {{ #{anchor(entry)} }}", "", escape(entry.says), ""]
    lines += [f"**{entry.verdict.capitalize()}.** {escape(entry.note)}".rstrip(), ""]
    pages = ", ".join(f"[{name}]({name})" for name in (source.removeprefix("docs/") for source in entry.sources))
    listed = {
        "the paper's figures": entry.theirs,
        "ours": f"{entry.ours} ({pages})" if pages else entry.ours,
        "code": _quote(entry.code),
        "tests": _quote(entry.tests),
        "commands": _quote(entry.commands),
    }
    lines += [f"* {name}: {text}" for name, text in listed.items() if text]
    for place, words in entry.pictures:
        lines += ["", f"![{entry.title}]({place})", "", f"*{words}*"]
    return "\n".join([*lines, ""])


def _quote(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def render_index(parts: Mapping[str, str], entries: Sequence[Entry]) -> str:
    """Every part with its title or label, and the verdicts of its entries."""
    lines = []
    for part, title in parts.items():
        own = [entry for entry in entries if part in entry.parts]
        shown = title if part.startswith(("Section", "Appendix")) else f"`{title}`" if title else ""
        lines.append([part, shown, ", ".join(link(entry, entry.verdict) for entry in own)])
    return "\n".join(["## All parts in order", "", markdown_table(["part", "title or label", "verdicts"], lines)])
