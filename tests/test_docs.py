"""Test the site: it builds without warnings, has no external resources, and names commands that exist."""

from __future__ import annotations

import ast
import html
import importlib
import importlib.util
import inspect
import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import typer.main
from typer.testing import CliRunner

import hullo
import hullo.keras
import hullo.lab
import hullo.population
from hullo import presets
from hullo.lab.cli import app
from hullo.population import schedules

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("docs/**/*.md")), *(ROOT / name for name in ("README.md", "benchmarks/README.md"))]
KINDS = ("only-light", "only-dark")
SHELLS = ("", "bash", "console", "sh")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--fail-on-warning", "--doctree-dir", str(folder / "doctrees")]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


class Page(HTMLParser):
    """A built page: what can be linked to, what it links to, and what a browser fetches for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.needs: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value}
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif "href" in values or "src" in values:
            self.needs.add(values.get("src") or values["href"])


@cache
def read(path: Path) -> Page:
    return Page(path)


def pages(site: Path) -> Iterator[tuple[Path, Page]]:
    return ((path, read(path)) for path in site.rglob("*.html"))


def test_pages_have_no_external_resources(site: Path) -> None:
    for path, page in pages(site):
        for address in page.needs - {"#"}:
            parts = urlsplit(address)
            local = not parts.scheme and not parts.netloc and (path.parent / unquote(parts.path)).is_file()
            assert local or address.startswith(("#", "data:")), f"{path.name} fetches {address[:200]}"
    for path in site.rglob("*.css"):
        outside = re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]*", path.read_text())
        assert not outside, f"{path.name} fetches {outside}"


def test_internal_links_are_valid(site: Path) -> None:
    for path, page in pages(site):
        for link in page.links:
            parts = urlsplit(link)
            if not parts.scheme:
                target = path.parent / unquote(parts.path) if parts.path else path
                assert target.is_file(), f"{path.name} links to {link}"
                known = {"", "top"} | (read(target).anchors if target.suffix == ".html" else set())
                assert unquote(parts.fragment) in known, f"{path.name} links to {link}"


def headings(path: Path) -> set[str]:
    """Return the anchors of the headings of a file, as GitHub spells them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_files_are_valid_without_the_site(path: Path) -> None:
    for name, anchor in re.findall(r"\]\(([^)#\s]*\.md)?(?:#([^)\s]+))?\)", path.read_text()):
        target = path.parent / name if name else path
        assert target.is_file(), f"{path.name} links to {name}"
        assert not anchor or anchor in headings(target), f"{path.name} links to {name}#{anchor}"


def test_images_exist_for_light_and_dark_pages(site: Path) -> None:
    for path in DOCUMENTS:
        text = path.read_text()
        assert not re.search(r"!\[[^\]]*\]\([^)]*\.png\)", text), f"{path}: an image without its <picture>"
        for dark, light in re.findall(r'srcset="(.*?)">\s*<img alt="[^"]{20,}" src="(.*?)">', text):
            assert dark == light.replace(".png", "-dark.png")
            assert (path.parent / dark).is_file()
            assert (path.parent / light).is_file()
    shown = [re.findall(r'class="(only-\w+)" src="(.*?)"', path.read_text()) for path, _ in pages(site)]
    light, dark = ({source for result in shown for kind, source in result if kind == name} for name in KINDS)
    assert {source.replace("-dark.png", ".png") for source in dark} == light
    assert len(light) == len(dark) > 5


def test_tutorial_shows_what_the_notebook_printed(site: Path) -> None:
    cells = json.loads((ROOT / "examples" / "tutorial.ipynb").read_text())["cells"]
    shown = html.unescape(re.sub(r"<[^>]+>", "", (site / "tutorial.html").read_text()))
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    printed = ["".join(output["text"]).strip() for output in outputs if output["output_type"] == "stream"]
    assert len(printed) > 5
    assert all(text in shown for text in printed)
    images = sum("image/png" in output.get("data", ()) for output in outputs)
    assert (site / "tutorial.html").read_text().count('src="data:image/png') == images > 2


def test_every_public_name_is_documented(site: Path) -> None:
    modules = (hullo, hullo.keras, hullo.lab, hullo.population)
    public = {f"{module.__name__}.{name}" for module in modules for name in module.__all__}
    for module in (presets, schedules):
        own = (
            item for item in vars(module).values() if inspect.isfunction(item) and item.__module__ == module.__name__
        )
        public |= {f"{module.__name__}.{item.__name__}" for item in own if not item.__name__.startswith("_")}
    assert public <= read(site / "api.html").anchors


def test_handwritten_signatures_match_the_code() -> None:
    api = (ROOT / "docs" / "api.md").read_text()
    functions = re.findall(r"autofunction:: ([\w.]+)\.(\w+)\((.*)\)", api)
    assert functions
    for module, name, arguments in functions:
        known = inspect.signature(getattr(importlib.import_module(module), name)).parameters
        assert re.findall(r"(?<![=\w.])[a-z]\w*", arguments) == list(known), f"{module}.{name}({arguments})"
    written = re.findall(r"autoclass:: ([\w.]+)\.(\w+)\((.*)\)", api)
    assert written
    for module, name, arguments in written:
        known = inspect.signature(getattr(importlib.import_module(module), name).__init__).parameters
        shown = re.findall(r"(?<![=\w])[a-z]\w*", arguments)
        assert shown == [argument for argument in known if argument in shown], f"{module}.{name}({arguments})"
        positional = re.findall(r"(?<![=\w])[a-z]\w*", arguments.partition("*, ")[0])
        by_keyword = {argument for argument in shown if known[argument].kind is inspect.Parameter.KEYWORD_ONLY}
        assert by_keyword == {a for a in shown if a not in positional and f"**{a}" not in arguments}, arguments


def test_documented_arguments_exist() -> None:
    wrong = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                text = re.search(r"^Args:\n((?: .*\n|\n)*)", (ast.get_docstring(node) or "") + "\n", re.MULTILINE)
                listed = re.findall(r"^ {4}(\w+(?:, \w+)*):", text[1] if text else "", re.MULTILINE)
                named = {name for names in listed for name in names.split(", ")}
                if (known := _argument_names(node)) is None:
                    continue  # they are those of another class
                wrong += [f"{path.name}:{node.lineno}: {name}" for name in sorted(named - known)]
    assert not wrong


def _argument_names(node: ast.FunctionDef | ast.ClassDef) -> set[str] | None:
    """Return the names of the arguments of a function or of a class; None if the latter has no constructor."""
    if isinstance(node, ast.FunctionDef):
        own = node.args
        return {
            argument.arg
            for argument in (*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg)
            if argument
        }
    names = {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    made = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name in ("__init__", "__new__")]
    return names.union(*map(_argument_names, made)) if names or made else None


def test_search_finds_guides_first_without_a_server(site: Path, browser: Any) -> None:
    guides = {
        "projection": "mathematics",
        "regression": "compare",
        "undecided": "compare",
        "early stopping": "training",
        "freeze": "training",
        "Lightning": "training",
        "from_pretrained": "saving",
        "dropout": "population",
        "ensemble": "population",
        "resume": "laboratory",
    }
    page = browser.new_page()
    for words, guide in guides.items():
        page.goto(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
        page.wait_for_function("document.querySelector('.search-summary')?.textContent.includes('found')")
        links = page.eval_on_selector_all("ul.search > li > a", "all => all.map(a => a.getAttribute('href'))")
        assert guide in [link.partition(".html")[0] for link in links][:3], words
    page.close()


def test_table_cells_do_not_break_inside_an_interval(site: Path) -> None:
    cells = re.findall(r"<td[^>]*>(.*?)</td>", (site / "results" / "claims.html").read_text(), re.DOTALL)
    intervals = [cell for cell in cells if "±" in cell]
    assert intervals
    assert not [cell for cell in intervals if re.search(r"[ \n]±|±[ \n]", cell)]


def commands(text: str) -> Iterator[list[str]]:
    """Yield what follows `hullo` in the commands of a document, in blocks and between backticks."""
    fences = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = "".join(block for language, block in fences if language in SHELLS).replace("\\\n", " ").splitlines()
    for line in [*lines, *re.findall(r"`(hullo [^`]+)`", text)]:
        words = shlex.split(line, comments=True)
        if "hullo" in words:
            rest = words[words.index("hullo") + 1 :]
            yield list(itertools.takewhile(lambda word: word not in ("|", "||", "&", "&&", ";", ">"), rest))


def leaves(group: Any) -> dict[tuple[str, ...], Any]:
    """Return every command by its names: train, data fetch, ..."""
    result: dict[tuple[str, ...], Any] = {}
    for name, command in group.commands.items():
        inner = leaves(command) if hasattr(command, "commands") else {(): command}
        result |= {(name, *names): leaf for names, leaf in inner.items()}
    return result


COMMANDS = leaves(typer.main.get_command(app))


def named(words: list[str]) -> tuple[str, ...]:
    """Return the command that words name, or a group of commands."""
    meant = [command[:size] for command in COMMANDS for size in (1, 2) if command[:size] == tuple(words[:size])]
    return max(meant, key=len, default=())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documented_commands_and_options_exist(path: Path) -> None:
    for words in commands(path.read_text()):
        command = named(words)
        given = words[len(command) :]
        assert command in COMMANDS or not given or given[0].startswith("-"), f"there is no hullo {shlex.join(words)}"
        # with --help first nothing is run, but everything is read
        outcome = CliRunner().invoke(app, [*command, "--help", *given])
        assert outcome.exit_code == 0, f"hullo {shlex.join(words)}: {outcome.output}"


def test_every_command_is_documented() -> None:
    site = [path.read_text() for path in ROOT.glob("docs/**/*.md")]
    assert {named(words) for text in site for words in commands(text)} >= COMMANDS.keys()


def test_options_in_the_pages_of_the_laboratory_exist() -> None:
    text = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("laboratory", "own", "report", "compare"))
    spoken = set(re.findall(r"`(--[\w-]+)", text))
    assert spoken <= {option for command in COMMANDS.values() for item in command.params for option in item.opts}


def defined_names(path: Path) -> set[str]:
    """Return the functions, classes and methods of a file, methods as Class.method."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return found


def test_every_stop_of_the_architecture_is_where_its_link_says() -> None:
    page = ROOT / "docs" / "architecture.md"
    links = re.findall(r"\[`([\w.]+)`\]\(([^)]+\.py)\)", page.read_text())
    assert len(links) > 20
    for name, target in links:
        path = (page.parent / target).resolve()
        assert path.is_file(), f"{page.name} links to {target}"
        module = path.relative_to(ROOT / "src" / "hullo").with_suffix("").parts
        module = module[:-1] if module[-1] == "__init__" else module
        names = {
            ".".join((*module[:k], defined)) for defined in defined_names(path) for k in (len(module), len(module) - 1)
        }
        assert name in names, f"{target} has no {name}"
