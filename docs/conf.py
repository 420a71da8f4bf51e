"""Configure Sphinx, for `make docs`. Pages load nothing from other hosts: no script, no font, no style sheet."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras would look for TensorFlow

import hullo

project = "hullo"
author = "The hullo developers"
copyright = author  # noqa: A001  (Sphinx's name)
version = release = hullo.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"hullo {release}"
html_math_renderer = "mathml"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("search.js"))
html_copy_source = False
html_show_sphinx = False

highlight_language = "bash"  # of blocks without a language: commands
default_role = "code"
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
smartquotes_action = "D"  # dashes only: quotation marks belong to code
maximum_signature_line_length = 100
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!hullo\b).*"),  # documented elsewhere: looking it up needs a network
    ("py:class", r"hullo\.(bases\.\w+|modules|surgery\.\w+|lab\.\w+\.\w+)\.\w+"),  # internal types
]


def mathml(translator: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML."""
    translator.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def trim(app: Sphinx, page: nodes.document) -> None:
    """Remove the empty line at the end of every example, which only pytest needs."""
    for block in page.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip()
        block.children = [nodes.Text(block.rawsource)]


def keep_together(app: Sphinx, page: nodes.document) -> None:
    """Prevent line breaks between a number and its interval in tables."""
    for cell in page.findall(nodes.entry):
        for text in cell.findall(nodes.Text):
            text.parent.replace(text, nodes.Text(text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")))


WHOLE_FILES = {
    "benchmarks": "../benchmarks/README.md",
    "changelog": "../CHANGELOG.md",
    "contributing": "../CONTRIBUTING.md",
}
"""Pages that show a file of the repository. Their own text, a link to that file, is what GitHub shows."""


NOTEBOOK = "tutorial", Path(__file__).parent.parent / "examples" / "tutorial.ipynb"
"""A page that shows a notebook, in the same way."""


def to_markdown(notebook: Path) -> str:
    """Return a notebook with its outputs as Markdown."""
    parts = []
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(
            source.replace("(../docs/", "(") if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        )
        printed = ""
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", ())})
            if "image/png" in data:
                parts.append(f"![output of the code above](data:image/png;base64,{''.join(data['image/png']).strip()})")
            else:
                printed += "".join(data["text/plain"])
        if printed:
            parts.insert(len(parts) - (parts[-1].startswith("![")), f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts)


PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(.*?)">\s*<img alt="(.*?)" src="(.*?)">\s*</picture>', re.DOTALL
)


def theme_images(app: Sphinx, page: str, content: list[str]) -> None:
    """Show images for light and for dark pages as the theme switches them; GitHub reads the <picture> itself."""
    content[0] = _themed(content[0], "")


def _themed(text: str, folder: str) -> str:
    """Replace every <picture> by two images, whose paths start in the folder of the page."""

    def both(found: re.Match[str]) -> str:
        dark, alt, light = found.groups()
        shown = ((light, "only-light"), (dark, "only-dark"))
        return "\n\n".join(f"```{{image}} {folder}{path}\n:alt: {alt}\n:class: {kind}\n```" for path, kind in shown)

    return PICTURE.sub(both, text)


def show_file(app: Sphinx, page: str, content: list[str]) -> None:
    """Replace a page that links to a file of the repository by that file, and link to its page from others."""
    content[0] = re.sub(r"\[(`[^`]+`)\]\(\.\./src/[^)]+\)", r"\1", content[0])  # links into the source are for GitHub
    for name, file in WHOLE_FILES.items():
        content[0] = content[0].replace(f"({file}", f"({name}.md")
    if page == NOTEBOOK[0]:
        app.env.note_dependency(str(NOTEBOOK[1]))  # so that a change of it makes the page anew
        content[0] = to_markdown(NOTEBOOK[1])
    if page in WHOLE_FILES:
        content[0] = f"```{{include}} {WHOLE_FILES[page]}\n:relative-docs: results/\n:relative-images:\n```\n"


def link_to_pages(app: Sphinx, path: Path, parent: str, content: list[str]) -> None:
    """Make an included file link to the page of another such file, and find its images."""
    content[0] = _themed(content[0], f"../{path.parent.name}/")
    for page, file in WHOLE_FILES.items():
        content[0] = content[0].replace(f"({file.removeprefix('../')}", f"({page}.md")


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.connect("doctree-read", trim)
    app.connect("doctree-read", keep_together)
    app.connect("source-read", show_file)
    app.connect("source-read", theme_images)
    app.connect("include-read", link_to_pages)
