"""Test that a user's network is known by the files that it imports, and runs with these."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_files import NETWORK, invoke

from hullo.lab import load_network
from hullo.lab.networks import OwnNetwork
from hullo.lab.spec.records import Records

pytestmark = pytest.mark.usefixtures("place")


@pytest.mark.parametrize("changed", ["beside.py", "parts/__init__.py", "parts/deep/one.py", "parts/two.py"])
def test_changed_import_is_another_network(place: Path, changed: str) -> None:
    """Of files beside the network: imported directly, through a package, or relatively; others do not count."""
    files = {
        "net.py": "import torch\nfrom beside import WIDTH\nfrom parts.deep import one\ndef Net(): ...\n",
        "parts/__init__.py": "",
        "parts/deep/__init__.py": "",
        "parts/deep/one.py": "from ..two import x\n",
        "parts/two.py": "x = 1\n",
        "unused.py": "",
    }
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content)
    before = OwnNetwork.open("net.py:Net").name
    (place / "unused.py").write_text("# changed")
    assert OwnNetwork.open("net.py:Net").name == before
    (place / changed).write_text((place / changed).read_text() + "# changed")
    assert OwnNetwork.open("net.py:Net").name != before


def test_helpers_of_one_name_are_not_mixed_up(place: Path) -> None:
    for folder, width in (("a", 4), ("b", 9)):
        (place / folder).mkdir()
        (place / folder / "helper_of_two.py").write_text(f"WIDTH = {width}\n")
        text = NETWORK.replace("from beside import", "from helper_of_two import")
        (place / folder / "net.py").write_text(text.replace("nn.LazyLinear(WIDTH)", "nn.Linear(64, WIDTH)"))
    result = invoke("reproduce", "a/net.py:Mlp/features.npz", "b/net.py:Mlp/features.npz", "--epochs", 1, "--weights")
    assert result.exit_code == 0, result.output
    for record in Records(Path("runs/records.jsonl")).read():
        weights = Path("runs/weights") / f"{record.spec.id}.safetensors"
        widths = {"a": 4, "b": 9}
        folder = next(name for name in widths if OwnNetwork.open(f"{name}/net.py:Mlp").name == record.spec.network)
        assert load_network(weights, network=f"{folder}/net.py:Mlp").one.out_features == widths[folder]


def test_changed_helper_of_a_helper_is_imported_anew(place: Path) -> None:
    files = {
        "top.py": "import first_helper, pack_of_helpers.third\nfrom pack_of_helpers import fourth\n"
        "from torch import nn\n"
        "def Net(num_classes=1):\n    return nn.Linear(first_helper.V + pack_of_helpers.third.V + fourth.V, 1)\n",
        "first_helper.py": "from second_helper import V\n",
        "second_helper.py": "V = 1\n",
        "pack_of_helpers/third.py": "V = 10\n",
        "pack_of_helpers/fourth.py": "V = 100\n",
    }
    for folder in ("a", "b"):
        for name, content in files.items():
            (place / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (place / folder / name).write_text(content.replace("= 1", "= 2") if folder == "b" else content)
    widths = [OwnNetwork.open(f"{folder}/top.py:Net").factory()().in_features for folder in ("a", "b")]
    # of another length: Python's cache of bytecode does not see a change of the same length in the same second
    (place / "a" / "second_helper.py").write_text("V = 1000\n")
    (place / "a" / "pack_of_helpers" / "fourth.py").write_text("V = 5000\n")
    widths.append(OwnNetwork.open("a/top.py:Net").factory()().in_features)
    assert widths == [111, 222, 6010]
