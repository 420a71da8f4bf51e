"""README and docs say what the records say, and are caught when they do not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from hullo.lab.records import Records

ROOT = Path(__file__).parents[2]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


results = load(ROOT / "tools" / "results.py")
made = load(ROOT / "tests" / "lab" / "made_records.py")

BLOCKS = "".join(f"before\n<!-- results:{name} -->\nas it was\n<!-- /results -->\nafter\n" for name in results.PARTS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with records in two folders and a README with every part."""
    for folder, column, reached in (("a", "kerasnet/cifar10", 85.25), ("b/c", "lenet5/cifar10", 65.25)):
        path = tmp_path / "results" / folder / "records.jsonl"
        runs = made.make_records({"relu": [reached] * 2, "affine(identity,relu)": [reached + 1] * 2}, column=column)
        Records(path).add(runs)
    (tmp_path / "README.md").write_text(BLOCKS)
    return tmp_path


def test_this_projects_documents_say_what_its_records_say() -> None:
    assert results.main(["--check"]) is None


def test_parts_are_made_once_and_for_all_and_the_rest_is_left_alone(root: Path) -> None:
    said = "README.md is not what the records say; run: python tools/results.py"
    assert results.main(["--check"], root) == said
    assert (root / "README.md").read_text() == BLOCKS
    assert results.main([], root) is None
    text = (root / "README.md").read_text()
    assert text.count("before\n<!-- results:") == text.count("<!-- /results -->\nafter\n") == len(results.PARTS)
    assert "as it was" not in text
    for shown in (
        "kerasnet/cifar10",
        "lenet5/cifar10",
        "86.25 ± 0.00",
        "is a hull, in every column: holds",
        "device time",
    ):
        assert shown in text
    assert results.main(["--check"], root) is None
    assert results.main([], root) is None
    assert (root / "README.md").read_text() == text


@pytest.mark.parametrize("document", ["README.md", "docs/results.md"])
def test_a_record_more_is_noticed(document: str, root: Path) -> None:
    (root / "docs").mkdir()
    (root / "README.md").rename(root / document)
    results.main([], root)
    Records(root / "results" / "new" / "records.jsonl").add([made.make_record("tanh", [1.0], seed=9)])
    assert results.main(["--check"], root) == f"{document} is not what the records say; run: python tools/results.py"


def test_a_part_may_be_about_one_folder(root: Path) -> None:
    text = results.with_parts("<!-- results:table b/c -->\n<!-- /results -->", root / "results")
    assert "lenet5/cifar10" in text
    assert "kerasnet" not in text


def test_without_records_nothing_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text(BLOCKS)
    assert results.main(["--check"], tmp_path) is results.main([], tmp_path) is None
    assert (tmp_path / "README.md").read_text() == BLOCKS
    assert capsys.readouterr().out.startswith("there are no records in results")


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("results:chart", "README.md: <!-- results:chart -->: there is no part 'chart'; there are table, details"),
        ("results:table nowhere", "nowhere does not exist"),
    ],
)
def test_a_part_that_cannot_be_made_is_an_error(marker: str, said: str, root: Path) -> None:
    (root / "README.md").write_text(f"<!-- {marker} -->\n<!-- /results -->")
    assert said in results.main([], root)
