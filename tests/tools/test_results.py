"""README and docs say what the records say, and are caught when they do not."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from hullo.lab.spec.records import Records

ROOT = Path(__file__).parents[2]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


results = load(ROOT / "tools" / "results.py")
made = load(ROOT / "tests" / "made_records.py")

BLOCKS = "".join(
    f"before\n<!-- results:{name} all -->\nas it was\n<!-- /results -->\nafter\n" for name in results.PARTS
)
REACHED = {"relu": [85.25] * 2, "affine(identity,relu)": [86.25] * 2}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with records in folders within folders and a README with every part."""
    runs = {
        "a": made.make_records(REACHED),
        "b/c": made.make_records(REACHED, column="lenet5/cifar10"),
        "study": made.make_records(REACHED, val_size=5000),
        "study-test": made.make_records(REACHED, coefficient_lr_scale=10.0),
    }
    for folder, records in runs.items():
        Records(tmp_path / "results" / "all" / folder / "records.jsonl").add(records)
    (tmp_path / "README.md").write_text(BLOCKS)
    return tmp_path


def test_readme_has_the_table_of_gains() -> None:
    assert "<!-- results:gains table columns -->" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("broken", ["<!-- results:table  all -->", "<!-- results: table all -->", ""])
def test_a_part_that_lost_its_marks_is_noticed(broken: str, root: Path) -> None:
    results.main([], root)
    text = (root / "README.md").read_text()
    for mark in ("<!-- results:table all -->", "<!-- /results -->"):
        (root / "README.md").write_text(text.replace(mark, broken, 1))
        assert "README.md: each part needs <!-- results:table table -->" in results.main(["--check"], root)


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
        "Hulls train without a careful initialisation, in every run: holds",
        "device time",
        "is the best of 1 setting",
        "scale=10 per=layer: +0.00 ± 0.00 against the default",
    ):
        assert shown in text
    assert results.main(["--check"], root) is None
    assert results.main([], root) is None
    assert (root / "README.md").read_text() == text


@pytest.mark.parametrize("document", ["README.md", "docs/results/claims.md"])
def test_a_record_more_is_noticed(document: str, root: Path) -> None:
    (root / "docs" / "results").mkdir(parents=True)
    (root / "README.md").rename(root / document)
    results.main([], root)
    Records(root / "results" / "all" / "new" / "records.jsonl").add([made.make_record("tanh", [1.0], seed=9)])
    assert results.main(["--check"], root) == f"{document} is not what the records say; run: python tools/results.py"


def test_a_part_is_about_the_folders_that_it_names(root: Path) -> None:
    def shown(folders: str) -> str:
        text: str = results.with_parts(f"<!-- results:table {folders} -->\n<!-- /results -->", root / "results")
        return text

    assert "lenet5/" in shown("all/b/c")
    assert "kerasnet" not in shown("all/b/c")
    assert "kerasnet" in shown("all/a")
    assert shown("all/a all/b/c").count("/<br>cifar10") == 2


def test_plain_pytorch_stands_beside_the_populations_of_its_column_and_batch(root: Path) -> None:
    marked = "<!-- results:speed all/a all/b -->\n<!-- /results -->"
    alone = results.with_parts(marked, root / "results")
    rows = ["column,batch,epoch_s,device", "lenet5/cifar10,32,8.0,a GPU", "kerasnet/cifar10,64,8.0,a GPU"]
    (root / "results" / "all" / "b" / "plain.csv").write_text("\n".join(rows))
    before, after = (text.splitlines() for text in (alone, results.with_parts(marked, root / "results")))
    (changed,) = (new for old, new in zip(before, after, strict=True) if old != new)
    assert "lenet5/cifar10" in changed
    speed, plain, ratio = (float(cell) for cell in changed.split("|")[-4:-1])
    assert plain == 1 / 8
    assert ratio == pytest.approx(speed * 8, rel=1e-2)


def test_runs_of_the_study_are_in_no_part_but_those_about_it(tmp_path: Path) -> None:
    """In this project's documents, as they are marked."""
    texts = [(ROOT / name).read_text() for name in results.DOCUMENTS]

    def parts() -> dict[tuple[str, str], str]:
        written = "".join(results.with_parts(text, tmp_path) for text in texts)
        return {(name, folders.strip()): text for _, name, folders, text, _ in results.MARKED.findall(written)}

    Records(tmp_path / "columns" / "records.jsonl").add(made.make_records(REACHED, coefficients=[[0.5, 0.5]]))
    Records(tmp_path / "batch" / "records.jsonl").add(made.make_records(REACHED, batch_size=128))
    slice_of = made.make_records(REACHED, column="alexnet/ilsvrc2012")
    for folder in ("alexnet-slice", "imagewoof"):
        Records(tmp_path / folder / "records.jsonl").add(slice_of)
    before = parts()
    Records(tmp_path / "study" / "records.jsonl").add(made.make_records(REACHED, val_size=5000))
    chosen = made.make_records(REACHED, coefficient_lr_scale=10.0)
    Records(tmp_path / "study-test" / "records.jsonl").add(chosen)
    after = parts()
    assert {name for (name, _), text in before.items() if results.NOTHING in text} == {"study", "study-test"}
    assert {name for (name, _), text in after.items() if results.NOTHING in text} == set()
    assert {key for key in after if before[key] != after[key]} == {
        ("study", "study"),
        ("study-test", "columns study-test"),
    }


def test_without_records_every_part_says_so_or_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(BLOCKS)
    assert results.main([], tmp_path) is None
    text = BLOCKS
    for name in results.OPTIONAL:
        text = text.replace(f"<!-- results:{name} all -->\nas it was\n", f"<!-- results:{name} all -->\n")
    assert (tmp_path / "README.md").read_text() == text.replace("as it was", results.NOTHING)
    assert results.main(["--check"], tmp_path) is None


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("results:chart all", "README.md: <!-- results:chart all -->: there is no part 'chart'"),
        ("results:table", "README.md: <!-- results:table -->: name a folder of results, too"),
        ("results:table broken", "records.jsonl, line 1"),
    ],
)
def test_a_part_that_cannot_be_made_is_an_error(marker: str, said: str, root: Path) -> None:
    (root / "results" / "broken").mkdir()
    (root / "results" / "broken" / "records.jsonl").write_text("no record\n")
    (root / "README.md").write_text(f"<!-- {marker} -->\n<!-- /results -->")
    assert said in results.main([], root)


def test_longer_runs_take_the_place_of_shorter_ones_of_their_column(root: Path) -> None:
    longer = [made.make_record("relu", [50.0, 77.25], seed=seed) for seed in range(2)]
    Records(root / "results" / "new" / "records.jsonl").add(longer)
    marked = "<!-- results:table new all/a all/b -->\n<!-- /results -->"
    text = results.with_parts(marked, root / "results")
    assert "| relu | **77.2" in text
    assert "86.2" in text  # lenet5/cifar10 has no longer ones
    assert text.count("2 epochs") == 1


def test_longer_runs_with_few_seeds_are_shown_by_themselves(root: Path) -> None:
    marked = "<!-- results:few-seeds new all/a all/b -->\n<!-- /results -->\n<!-- results:table new all/a all/b -->\n"
    marked += "<!-- /results -->"
    for seed, reached in ((2, 86.75), (3, 87.25)):
        records = [made.make_record(row, [reached], seed=seed) for row in REACHED]
        Records(root / "results" / "all" / "a" / "records.jsonl").add(records)
    (root / "results" / "new").mkdir()
    few, table = results.with_parts(marked, root / "results").split("<!-- /results -->\n", 1)
    assert few == "<!-- results:few-seeds new all/a all/b -->\n"
    for seed in range(3):
        Records(root / "results" / "new" / "records.jsonl").add([made.make_record("relu", [50.0, 77.25], seed=seed)])
        few, now = results.with_parts(marked, root / "results").split("<!-- /results -->\n", 1)
        assert (now == table) == ("77.25" in few) == (seed < 2)


def test_imagewoof_is_shown_once_there_are_records_and_named_for_what_it_is(tmp_path: Path) -> None:
    marked = "<!-- results:imagewoof imagewoof -->\n<!-- /results -->"
    assert results.with_parts(marked, tmp_path) == marked
    reached = {"relu": [61.0, 62.0, 63.0], "convex(identity,relu)": [64.0, 65.0, 66.5]}
    runs = [replace(record, images=[9025, 3929]) for record in made.make_records(reached, column="alexnet/ilsvrc2012")]
    Records(tmp_path / "imagewoof" / "records.jsonl").add(runs)
    text = results.with_parts(marked, tmp_path)
    assert "Imagewoof" in text
    assert "not its column" in text
    assert "9,025" in text
    assert "+3.17" in text
    assert "(" + str(57.54) not in text  # the paper's figure is another data set's
