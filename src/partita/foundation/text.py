"""Text that others wrote, made fit to be shown: names, levels and reasons from sites, tables and files."""

# Characters of a name, of why a site is away or not asked again, and of a whole error with all that it quotes.
MOST, MOST_REASON, MOST_OF_ERROR = 200, 1000, 4000


def clean(text: object, most: int = MOST, lines: bool = False) -> str:
    r"""Text on one line, without anything that a terminal would obey, and not too long.

    What cannot be printed (escape sequences, line breaks, marks that turn the direction of writing) is shown as Python
    writes it. Brackets stay: Rich is given `Text`, and pages escape what they are given, so neither reads markup here.

    Args:
        text: whatever it is, its `str`.
        most: characters; what is longer is cut, and ends with "…".
        lines: keep line breaks, for text of our own that quotes others.

    >>> clean("north\x1b]0;owned\x07")
    'north\\x1b]0;owned\\x07'
    >>> clean("a" * 300, most=5)
    'aaaa…'
    """
    # Cut before and after: escapes are longer than what they stand for.
    whole = str(text)
    shown = "".join(map(_kept if lines else _printable, whole[: most + 1]))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _kept(character: str) -> str:
    return character if character == "\n" else _printable(character)
