"""Whether two trees of the library give the same results to the last bit.

    PYTHONPATH=old/src python -m benchmarks.same_bits --out old.json
    PYTHONPATH=new/src python -m benchmarks.same_bits --against old.json

One line per case: its name, and a fingerprint of posterior, factors, log evidence and history without wall-clock
seconds. With --against, what differs is said, and the exit code is 1. Words for people may be rephrased: how many of a
case's messages are new is said, and is no difference. Bits are those of one machine and one version of JAX.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# What JAX says of its own cache of compiled programs is no news here.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import partita
from benchmarks.bits import adversaries, fits, streams, tables
from benchmarks.bits.outcomes import Case, differences


def all_cases() -> list[Case]:
    return [case for part in (fits, tables, streams, adversaries) for case in part.cases()]


def run_case(case: Case) -> dict[str, Any]:
    """A case's outcome, packed; an error is an outcome too, so that the other cases are still run."""
    try:
        return fits.quiet(case).packed()
    except Exception as error:
        return {"fingerprint": f"{type(error).__name__}: {error}", "error": True}


def compare(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two packed outcomes of a case."""
    if old["fingerprint"] == new["fingerprint"]:
        return []
    if "error" in old or "error" in new:
        return [f"old: {old['fingerprint']}", f"new: {new['fingerprint']}"]
    return list(differences(old, new)) or ["the fingerprint differs, though no value does: the order of names?"]


def count_rephrased(old: dict[str, Any], new: dict[str, Any]) -> int:
    return len(set(new.get("words", ())) - set(old.get("words", ())))


def run_all(cases: Sequence[Case], reference: dict[str, Any] | None) -> tuple[dict[str, Any], int]:
    """Run the cases in turn and print a line for each; returns their outcomes, and how many differ."""
    found, differing = {}, 0
    for case in cases:
        began = time.perf_counter()
        outcome = found[case.name] = run_case(case)
        line = f"{case.name:36} {outcome['fingerprint']}  ({time.perf_counter() - began:.1f} s)"
        if reference is not None and case.name in reference:
            problems = compare(reference[case.name], outcome)
            differing += bool(problems)
            rephrased = count_rephrased(reference[case.name], outcome)
            line += "  DIFFERS" if problems else "  same"
            line += f", {rephrased} messages rephrased" if rephrased else ""
            line += "".join(f"\n    {problem}" for problem in problems)
        elif reference is not None:
            line += "  not in the reference"
        print(line, flush=True)
    return found, differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Only some cases of every area: two minutes.")
    parser.add_argument("--only", default="", help="Only cases whose name begins so.")
    parser.add_argument("--out", type=Path, help="Where outcomes are written, as a reference.")
    parser.add_argument("--against", type=Path, help="A reference to compare with.")
    asked = parser.parse_args()
    chosen = [case for case in all_cases() if (case.quick or not asked.quick) and case.name.startswith(asked.only)]
    print(f"{Path(partita.__file__).parent}: {len(chosen)} cases")
    reference = None if asked.against is None else json.loads(asked.against.read_text())
    found, differing = run_all(chosen, reference)
    if asked.out is not None:
        asked.out.write_text(json.dumps(found))
    broken = [name for name, outcome in found.items() if "error" in outcome]
    if broken:
        print(f"{len(broken)} cases ended with an error: {', '.join(broken)}")
    if reference is not None:
        print(f"{differing} of {len(found)} cases differ")
    sys.exit(1 if differing or (broken and reference is None) else 0)


if __name__ == "__main__":
    main()
