"""How Sphinx makes the site: `make docs`. Pages need nothing from outside: no script, no font, no style sheet."""

from __future__ import annotations

import os
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
html_copy_source = False
html_show_sphinx = False

highlight_language = "bash"  # of what does not say: commands
default_role = "code"
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
smartquotes_action = "D"  # dashes alone: quotation marks are code's
maximum_signature_line_length = 100
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!hullo\b).*"),  # what others document: to look it up would take a network
    ("py:class", r"hullo\.(bases|modules|surgery\.\w+|lab\.\w+\.\w+)\.\w+"),  # types that nobody has to know
]


def mathml(translator: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula in the browser's own language for formulas."""
    translator.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def trim(app: Sphinx, page: nodes.document) -> None:
    """Leave out the empty line that ends every example: pytest needs it, readers do not."""
    for block in page.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip()
        block.children = [nodes.Text(block.rawsource)]


def keep_together(app: Sphinx, page: nodes.document) -> None:
    """Let no line of a table end between a number and its interval."""
    for cell in page.findall(nodes.entry):
        for text in cell.findall(nodes.Text):
            text.parent.replace(text, nodes.Text(text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")))


def lead_to_pages(app: Sphinx, path: Path, parent: str, content: list[str]) -> None:
    """Let a file of the repository that a page includes link to the page of another such file."""
    content[0] = content[0].replace("(benchmarks/README.md", "(benchmarks.md")


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.connect("doctree-read", trim)
    app.connect("doctree-read", keep_together)
    app.connect("include-read", lead_to_pages)
