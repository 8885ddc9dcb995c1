"""Reads which parts a paper in LaTeX has, with the numbers that LaTeX gives them: what docs/data/paper.toml lists."""

import re
from collections.abc import Iterator

# What is numbered, in the order of the text, and labels.
TOKENS = re.compile(
    r"\\(?P<section>(?:sub){0,2}section)\{|\\(?P<appendix>appendix)\b"
    r"|\\begin\{(?P<begin>property|algorithm|figure|table|align|equation)\}"
    r"|\\end\{(?P<end>property|algorithm|figure|table|align|equation)\}"
    r"|\\label\{(?P<label>[^}]*)\}|(?P<row>\\\\)|(?P<silent>\\nonumber|\\notag)|\\setcounter\{table\}\{(?P<table>\d+)\}"
)
NAMES = {"property": "Property", "algorithm": "Algorithm", "figure": "Figure", "table": "Table"}
WORDS = {r"\theta": "θ", r"\alpha": "α", r"\rightarrow": "→"}


def read_parts(source: str) -> dict[str, str]:
    """Parts by number, such as "Eq. 2": titles of sections, labels of anything else ("" where there is none)."""
    text = re.sub(r"(?<!\\)%.*", "", source)
    parts = dict(_parts(text[text.index(r"\begin{document}") :]))
    numbers = {label: part.split()[1] for part, label in parts.items() if part.startswith("Property")}
    return {
        part: re.sub(r"prop:[\w-]+", lambda m: numbers[m[0]], title) if is_section(part) else title
        for part, title in parts.items()
    }


def is_section(part: str) -> bool:
    return part.startswith(("Section", "Appendix"))


def _parts(text: str) -> Iterator[tuple[str, str]]:
    counts = dict.fromkeys((*NAMES, "equation"), 0)
    depth, in_appendix, kind, label, silent = [0, 0, 0], False, "", "", False
    for token in TOKENS.finditer(text):
        found = token.groupdict()
        if found["section"]:
            level = found["section"].count("sub")
            depth = [*depth[:level], depth[level] + 1, *[0] * (2 - level)]
            first = chr(ord("A") + depth[0] - 1) if in_appendix else str(depth[0])
            number = ".".join([first, *map(str, depth[1 : level + 1])])
            yield f"{'Appendix' if in_appendix else 'Section'} {number}", _title(text, token.end())
        elif found["appendix"]:
            depth, in_appendix = [0, 0, 0], True
        elif found["table"]:
            counts["table"] = int(found["table"])
        elif found["begin"] in ("align", "equation"):
            kind, label, silent = "equation", "", False
        elif found["begin"]:
            outer, label = found["begin"], ""
            counts[outer] += 1
            # A label is behind the caption, or in it.
            inside = text[token.end() : text.index(rf"\end{{{outer}}}", token.end())]
            labels = re.findall(r"\\label\{((?:fig|alg|prop|table)[^}]*)\}", inside)
            yield f"{NAMES[outer]} {counts[outer]}", labels[0] if labels else ""
        elif kind and (found["row"] or found["end"] in ("align", "equation")):
            if not silent:
                counts["equation"] += 1
                yield f"Eq. {counts['equation']}", label
            label, silent = "", False
            kind = "" if found["end"] else kind
        elif kind and found["label"]:
            label = found["label"]
        elif kind and found["silent"]:
            silent = True


def _title(text: str, start: int) -> str:
    """What stands in braces, as plain words."""
    depth, end = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    title = re.sub(r"\\label\{[^}]*\}", "", text[start : end - 1])
    title = re.sub(r"\\ref\{([^}]*)\}", r"\1", title)
    for command, word in WORDS.items():
        title = title.replace(command, word)
    return " ".join(re.sub(r"[$\\{}]", "", title).split())
