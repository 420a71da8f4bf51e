"""Write the results of swapped models into the documentation."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from checks import VERDICTS, Result

MARKED = re.compile(r"(<!-- models -->\n).*?(<!-- /models -->)", re.DOTALL)


def read(path: Path) -> dict[str, Result]:
    """Return the results in a file by library and name."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    return {f"{result.library}/{result.name}": result for result in results}


def write(page: Path, results: Collection[Result]) -> None:
    """Write the tables into their place in a page."""
    text = page.read_text()
    if len(MARKED.findall(text)) != 1:
        raise ValueError(f"{page} has no place for the tables, which is <!-- models --> and <!-- /models -->")
    made = "\n".join(_tables(results))
    page.write_text(MARKED.sub(lambda marked: f"{marked[1]}{made}\n{marked[2]}", text))


def _tables(results: Collection[Result]) -> Iterator[str]:
    libraries = list(dict.fromkeys(result.library for result in results))
    yield from _head("", *VERDICTS, "models", "hulls")
    for library in [*libraries, "all"]:
        own = [result for result in results if library in (result.library, "all")]
        counts = Counter(result.verdict for result in own)
        numbers = [*(counts[verdict] for verdict in VERDICTS), len(own), sum(result.hulls for result in own)]
        yield _row(library, *numbers)
    yield ""
    yield f"<sub>{'; '.join(sorted({result.setting for result in results}))}</sub>"
    yield ""
    yield "### Why activations were left alone"
    yield ""
    reasons = Counter(reason for result in results for reason in {_reason(line) for line in result.left})
    yield from _head("reason", "models")
    for reason, count in reasons.most_common():
        yield _row(reason, count)
    for library in libraries:
        yield ""
        yield f"### {library}"
        yield ""
        yield from _head("model", "verdict", "hulls", "gates", "left alone")
        for result in (result for result in results if result.library == library):
            yield _row(result.name, result.verdict, result.hulls, result.gates, len(result.left))


def _reason(line: str) -> str:
    """Return why something was left alone, without the names of this one model."""
    return line.partition("): ")[2]


def _head(*cells: str) -> Iterator[str]:
    yield _row(*cells)
    yield _row(
        *(":---" if number == 0 or cell in ("verdict", "reason") else "---:" for number, cell in enumerate(cells))
    )


def _row(*cells: object) -> str:
    escaped = (re.sub(r"([|_*<>])", r"\\\1", str(cell)) for cell in cells)
    return f"| {' | '.join(escaped)} |"
