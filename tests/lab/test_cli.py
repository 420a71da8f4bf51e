import re
import subprocess
import sys

from typer.testing import CliRunner

import hullo
from hullo.lab.cli import app


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_version_option_prints_the_version():
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"hullo {hullo.__version__}\n")


def test_shells_complete_commands_and_options():
    for words, expected in (("hullo tr", "train"), ("hullo train --op", "--optimizer")):
        environment = {"_HULLO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert CliRunner().invoke(app, [], env=environment, prog_name="hullo").stdout.split() == [expected]


def test_missing_packages_are_one_line_with_install_command():
    code = "import sys; sys.modules['typer'] = None; from hullo.__main__ import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert re.fullmatch(r"hullo: .* needs typer; .*pip install '\.\[lab\]'.*\n", run.stderr)
