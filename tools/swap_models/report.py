"""Write the results of swapped models into the documentation."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from checks import VERDICTS, Result

MARKED = re.compile(r"(<!-- models -->\n).*?(<!-- /models -->)", re.DOTALL)
GATE = "replaced only if named in functions"


def read(path: Path) -> dict[str, Result]:
    """Return the results in a file by library and name."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    return {f"{result.library}/{result.name}": result for result in results}


def write(page: Path, results: Collection[Result]) -> None:
    """Write the tables into a page, between their markers."""
    text = page.read_text()
    if len(MARKED.findall(text)) != 1:
        raise ValueError(f"{page} needs one pair of markers <!-- models --> and <!-- /models --> for the tables")
    made = "\n".join(_tables(results))
    page.write_text(MARKED.sub(lambda marked: f"{marked[1]}{made}\n{marked[2]}", text))


def _tables(results: Collection[Result]) -> Iterator[str]:
    libraries = list(dict.fromkeys(result.library for result in results))
    yield from _head("library", "models", *VERDICTS, "hulls")
    for library in [*libraries, "all"]:
        own = [result for result in results if library in (result.library, "all")]
        counts = Counter(result.verdict for result in own)
        yield _row(library, len(own), *(counts[verdict] for verdict in VERDICTS), sum(item.hulls for item in own))
    yield from ("", f"<sub>{'; '.join(sorted({result.setting for result in results}))}</sub>", "")
    yield from ("### Partly replaced or refused", "")
    yield from _head("model", "verdict", "hulls", "not replaced, and why")
    for result in (result for result in results if result.verdict != "right"):
        only = f"all are {GATE}" if GATE in result.refusal else "no activation was found"
        reasons = " · ".join(dict.fromkeys(_reasons(result))) or only
        yield _row(f"{result.library} {result.name}", result.verdict, result.hulls, reasons)
    yield from ("", "### Replaced", "", "The number of hulls follows each name.", "")
    for library in libraries:
        own = [result for result in results if result.library == library and result.verdict == "right"]
        yield from (f"**{library}**: {', '.join(f'{_plain(item.name)} {item.hulls}' for item in own)}", "")


def _reasons(result: Result) -> Iterator[str]:
    """Yield the reasons why activations were not replaced, without names of the model."""
    refused = re.split(r"; (?=the model \(|[\w.]+ \()", result.refusal.partition("be replaced: ")[2])
    for line in [*result.wrong, *result.left, *refused]:
        reason = re.sub(r" \([^()]*, line \d+\)", "", line.partition("): ")[2] or line)
        helper = r"^\S+ (calls .*), and is not a method that can be (?:changed|rewritten)"
        reason = re.sub(helper, r"a helper function \1", reason)
        if reason and GATE not in reason:
            yield reason.removesuffix("; ...")


def _head(*cells: str) -> Iterator[str]:
    words = ("library", "model", "verdict", "not replaced, and why")
    yield _row(*cells)
    yield _row(*(":---" if cell in words else "---:" for cell in cells))


def _row(*cells: object) -> str:
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(cell: object) -> str:
    """Return text with Markdown characters escaped."""
    return re.sub(r"([|_*<>])", r"\\\1", str(cell))
