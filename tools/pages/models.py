"""The results of swapped models, which `tools/swap_models` records."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace as Result

VERDICTS = ("right", "partly", "refused", "wrong")
SEVERAL = ("torchvision", "timm", "transformers", "diffusers")  # libraries of which there are many models
GATE = "replaced only if named in functions"


def models_part(path: Path) -> str:
    """Return the tables of a file of results, a line of JSON per model."""
    results = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return "\n".join(_tables(results)).rstrip()


def _tables(results: Collection[Result]) -> Iterator[str]:
    several = [result for result in results if result.library in SEVERAL]
    others = [result for result in results if result.library not in SEVERAL]
    yield from _head("library", "version", "models", *VERDICTS, "hulls")
    for library in SEVERAL:
        yield _counts(library, [result for result in several if result.library == library])
    yield from (_counts("other packages", others), _counts("all", results), "")
    yield from (f"<sub>{'; '.join(_environments(results))}</sub>", "", f"{_times(results)}", "")
    yield from ("### Partly replaced or refused", "")
    yield from _head("model", "verdict", "hulls", "not replaced, and why")
    for result in (result for result in results if result.verdict != "right"):
        only = f"all are {GATE}" if GATE in result.refusal else "no activation was found"
        reasons = " · ".join(dict.fromkeys(_reasons(result))) or only
        yield _row(f"{result.library} {result.name}", result.verdict, result.hulls, reasons)
    yield from ("", "### Other packages", "", "The number of hulls follows each name.", "")
    yield from _head("library", "version", "replaced")
    for library in sorted({result.library for result in others}):
        own = [result for result in others if result.library == library]
        yield _row(library, _versions(own), _names(own))
    yield from ("", "### Replaced", "")
    for library in SEVERAL:
        yield from (f"**{library}**: {_plain(_names([item for item in several if item.library == library]))}", "")


def _counts(title: str, results: Collection[Result]) -> str:
    counts = Counter(result.verdict for result in results)
    version = _versions(results) if title in SEVERAL else ""
    hulls = sum(result.hulls for result in results)
    return _row(title, version, len(results), *(counts[verdict] for verdict in VERDICTS), hulls)


def _versions(results: Collection[Result]) -> str:
    return ", ".join(dict.fromkeys(result.setting.partition(",")[0].rpartition(" ")[2] for result in results))


def _environments(results: Collection[Result]) -> Iterator[str]:
    for environment, count in Counter(result.setting.partition(", ")[2] for result in results).most_common():
        yield f"{count} models: {environment}"


def _times(results: Collection[Result]) -> str:
    times = sorted(result.swap for result in results if result.swap)
    median, most = times[len(times) // 2], times[len(times) * 9 // 10]
    return (
        f"Beyond the forward and backward passes that it runs, a swap takes {median:.2g} s of one processor in the "
        f"median, and at most {most:.2g} s for nine models in ten."
    )


def _names(results: Collection[Result]) -> str:
    return ", ".join(f"{result.name} {result.hulls}" for result in results if result.hulls)


def _reasons(result: Result) -> Iterator[str]:
    """Yield the reasons why activations were not replaced, without names of the model."""
    refused = re.split(r"; (?=the model \(|[\w.]+ \()", result.refusal.partition("be replaced: ")[2])
    for line in [*result.wrong, *result.left, *refused]:
        reason = re.sub(r" \([^()]*, line \d+\)", "", line.partition("): ")[2] or line)
        if reason and GATE not in reason:
            yield reason.removesuffix("; ...")


def _head(*cells: str) -> Iterator[str]:
    words = ("library", "version", "model", "verdict", "replaced", "not replaced, and why")
    yield _row(*cells)
    yield _row(*(":---" if cell in words else "---:" for cell in cells))


def _row(*cells: object) -> str:
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(cell: object) -> str:
    """Return text with Markdown characters escaped."""
    return re.sub(r"([|_*<>])", r"\\\1", str(cell))
