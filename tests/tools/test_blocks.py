"""README and docs say what the records say, and are caught when they do not."""

from __future__ import annotations

import importlib.util
import json
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


blocks = load(ROOT / "tools" / "blocks.py")
made = load(ROOT / "tests" / "made_records.py")

BLOCKS = "".join(f"before\n<!-- block:{name} all -->\nas it was\n<!-- /block -->\nafter\n" for name in blocks.PARTS)
REACHED = {"relu": [85.25] * 2, "affine(identity,relu)": [86.25] * 2}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a project with records in nested folders and a README with every part."""
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


def test_every_block_that_can_be_made_is_on_some_page() -> None:
    marked = [block for path in blocks.pages(ROOT) for block in blocks.MARKED.findall(path.read_text())]
    assert {block[1] for block in marked} == {*blocks.PARTS, *blocks.TABLES, *blocks.FILES}


def test_swapped_models_are_counted_with_reasons(tmp_path: Path) -> None:
    empty = {"hulls": 0, "left": [], "refusal": "", "wrong": [], "swap": 0.0, "setting": "timm 1.0, torch 2"}
    reasons = "a (f): it is odd; at all (Net.run, line 3); b (sin): replaced only if named in functions"
    results = [
        {"library": "timm", "name": "one_a", "verdict": "right", "hulls": 3, "swap": 0.3},
        {"library": "timm", "name": "two", "verdict": "partly", "hulls": 1, "swap": 0.2}
        | {"left": ["a.b (relu): it is handed on (Net.forward, line 7)"]},
        {"library": "kan", "name": "KAN", "verdict": "right", "hulls": 2, "swap": 0.1, "setting": "kan 0.1, torch 2"},
        {"library": "timm", "name": "three", "verdict": "refused"}
        | {"refusal": f"ValueError: no activation can be replaced: {reasons}"},
    ]
    path = tmp_path / "models.jsonl"
    path.write_text("".join(json.dumps(empty | result) + "\n" for result in results))
    lines = blocks.FILES["models"](path).splitlines()
    assert "| timm | 1.0 | 3 | 1 | 1 | 1 | 0 | 4 |" in lines
    assert "| all |  | 4 | 2 | 1 | 1 | 0 | 6 |" in lines
    assert "| kan | 0.1 | KAN 2 |" in lines
    assert any("takes 0.2 s" in line and "at most 0.3 s" in line for line in lines)
    assert "| timm two | partly | 1 | it is handed on |" in lines
    assert "| timm three | refused | 0 | it is odd; at all |" in lines
    assert r"**timm**: one\_a 3, two 1" in lines


def test_output_and_runs_are_those_of_their_files(tmp_path: Path) -> None:
    runs = [("relu", 0.1, 0, 3.0), ("relu", 0.2, 0, 2.0), ("prelu", 0.1, 0, 2.5), ("prelu", 0.2, 0, 2.6)]
    runs += [("relu", 0.2, 100, 4.0), ("prelu", 0.1, 100, 3.5), ("relu", 0.2, 101, 5.0), ("prelu", 0.1, 101, 3.5)]
    about = dict.fromkeys(("device", "threads", "python", "torch", "triton", "hullo", "commit"), "here")
    lines = [
        json.dumps(
            {
                "run": {"candidate": name, "lr": lr, "seed": seed},
                "scores": {"val": score, "test": score, "seconds": 1.0},
                "arguments": {},
                "environment": about,
            }
        )
        for name, lr, seed, score in runs
    ]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "tables.jsonl").write_text("\n".join(lines))
    (tmp_path / "results" / "output.txt").write_text("how\n\nfirst\n\nlast\n\nfinding\n")
    marks = ["runs tables.jsonl", "output output.txt", "finding output.txt"]
    page = "".join(f"<!-- block:{mark} -->\n<!-- /block -->\n" for mark in marks)
    made = blocks.with_blocks(page, tmp_path)
    assert "| relu (reference) | 0.2 (end of the grid) | 2 | 4.5000 ± 6.3531 |  |  | 1 |" in made
    assert "| prelu | 0.1 (end of the grid) | 2.5 | 3.5000 ± 0.0000 | -1.0000 ± 6.3531 | 0.3 | 1 |" in made
    assert "```text\nhow\n\nfirst\n\nlast\n```\n\n> finding\n" in made
    assert "<!-- block:finding output.txt -->\n> finding\n<!-- /block -->" in made


@pytest.mark.parametrize("broken", ["<!-- block:table  all -->", "<!-- block: table all -->", ""])
def test_a_part_that_lost_its_marks_is_noticed(broken: str, root: Path) -> None:
    blocks.main([], root)
    text = (root / "README.md").read_text()
    for mark in ("<!-- block:table all -->", "<!-- /block -->"):
        (root / "README.md").write_text(text.replace(mark, broken, 1))
        assert "README.md: each block needs <!-- block:" in blocks.main(["--check"], root)


def test_parts_are_made_once_and_for_all_and_the_rest_is_left_alone(root: Path) -> None:
    assert "README.md is not up to date" in blocks.main(["--check"], root)
    assert (root / "README.md").read_text() == BLOCKS
    assert blocks.main([], root) is None
    text = (root / "README.md").read_text()
    assert text.count("before\n<!-- block:") == text.count("<!-- /block -->\nafter\n") == len(blocks.PARTS)
    assert "as it was" not in text
    for shown in (
        "kerasnet/cifar10",
        "lenet5/cifar10",
        "86.25 ± 0.00",
        "The best activation is a hull, in every column: undecided",
        "device time",
        "| 10 | layer | 86.25 ± 0.00 | +0.00 ± 0.00 |",
    ):
        assert shown in text
    assert blocks.main(["--check"], root) is None
    assert blocks.main([], root) is None
    assert (root / "README.md").read_text() == text


@pytest.mark.parametrize("document", ["README.md", "docs/results/claims.md"])
def test_a_record_more_is_noticed(document: str, root: Path) -> None:
    (root / "docs" / "results").mkdir(parents=True)
    (root / "README.md").rename(root / document)
    blocks.main([], root)
    Records(root / "results" / "all" / "new" / "records.jsonl").add([made.make_record("tanh", [1.0], seed=9)])
    assert f"{document} is not up to date" in blocks.main(["--check"], root)


def test_a_part_is_about_the_folders_that_it_names(root: Path) -> None:
    def shown(folders: str) -> str:
        text: str = blocks.with_blocks(f"<!-- block:table {folders} -->\n<!-- /block -->", root)
        return text

    assert "lenet5/" in shown("all/b/c")
    assert "kerasnet" not in shown("all/b/c")
    assert "kerasnet" in shown("all/a")
    assert shown("all/a all/b/c").count("/<br>cifar10") == 2


def test_plain_pytorch_stands_beside_the_populations_of_its_column_and_batch(root: Path) -> None:
    marked = "<!-- block:speed all/a all/b -->\n<!-- /block -->"
    alone = blocks.with_blocks(marked, root)
    rows = ["column,batch,epoch_s,device", "lenet5/cifar10,32,8.0,a GPU", "kerasnet/cifar10,64,8.0,a GPU"]
    (root / "results" / "all" / "b" / "plain.csv").write_text("\n".join(rows))
    before, after = (text.splitlines() for text in (alone, blocks.with_blocks(marked, root)))
    (changed,) = (new for old, new in zip(before, after, strict=True) if old != new)
    assert "lenet5/cifar10" in changed
    speed, plain, ratio = (float(cell) for cell in changed.split("|")[-5:-2])
    assert plain == 1 / 8
    assert ratio == pytest.approx(speed * 8, rel=1e-2)


def test_runs_of_the_study_are_in_no_part_but_those_about_it(tmp_path: Path) -> None:
    """In this project's documents, as they are marked."""
    marked = [block for path in blocks.pages(ROOT) for block in blocks.MARKED.findall(path.read_text())]
    texts = ["".join(block) for block in marked if block[1] in blocks.PARTS]

    def parts() -> dict[tuple[str, str], str]:
        written = "".join(blocks.with_blocks(text, tmp_path) for text in texts)
        return {(name, folders.strip()): text for _, name, folders, text, _ in blocks.MARKED.findall(written)}

    Records(tmp_path / "results" / "columns" / "records.jsonl").add(
        made.make_records(REACHED, coefficients=[[0.5, 0.5]])
    )
    Records(tmp_path / "results" / "batch" / "records.jsonl").add(made.make_records(REACHED, batch_size=128))
    alexnet = made.make_records(REACHED, column="alexnet/ilsvrc2012")
    Records(tmp_path / "results" / "imagewoof" / "records.jsonl").add(alexnet)
    before = parts()
    Records(tmp_path / "results" / "study" / "records.jsonl").add(made.make_records(REACHED, val_size=5000))
    chosen = made.make_records(REACHED, coefficient_lr_scale=10.0)
    Records(tmp_path / "results" / "study-test" / "records.jsonl").add(chosen)
    after = parts()
    assert {name for (name, _), text in before.items() if blocks.NOTHING in text} == {"study", "study-test"}
    assert {name for (name, _), text in after.items() if blocks.NOTHING in text} == set()
    assert {key for key in after if before[key] != after[key]} == {
        ("study", "study"),
        ("study-test", "columns study-test"),
    }


def test_without_records_every_part_says_so(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(BLOCKS)
    assert blocks.main([], tmp_path) is None
    assert (tmp_path / "README.md").read_text() == BLOCKS.replace("as it was", blocks.NOTHING)
    assert blocks.main(["--check"], tmp_path) is None


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("block:chart all", "README.md: <!-- block:chart all -->: unknown block 'chart'"),
        ("block:table", "README.md: <!-- block:table -->: name its folder or file"),
        ("block:table broken", "records.jsonl, line 1"),
    ],
)
def test_a_part_that_cannot_be_made_is_an_error(marker: str, message: str, root: Path) -> None:
    (root / "results" / "broken").mkdir()
    (root / "results" / "broken" / "records.jsonl").write_text("no record\n")
    (root / "README.md").write_text(f"<!-- {marker} -->\n<!-- /block -->")
    assert message in blocks.main([], root)


def test_longer_runs_take_the_place_of_shorter_ones_of_their_column(root: Path) -> None:
    longer = [made.make_record("relu", [50.0, 77.25], seed=seed) for seed in range(2)]
    Records(root / "results" / "new" / "records.jsonl").add(longer)
    marked = "<!-- block:table new all/a all/b -->\n<!-- /block -->"
    text = blocks.with_blocks(marked, root)
    assert "| relu | **77.2" in text
    assert "86.2" in text  # lenet5/cifar10 has no longer ones
    assert text.count("2 epochs") == 1
    assert text.count("/<br>cifar10") == 2  # no shorter ones of kerasnet/cifar10


def test_imagewoof_is_named_for_what_it_is(tmp_path: Path) -> None:
    marked = "<!-- block:imagewoof imagewoof -->\n<!-- /block -->"
    reached = {"relu": [61.0, 62.0, 63.0], "convex(identity,relu)": [64.0, 65.0, 66.5]}
    runs = [replace(record, images=[9025, 3929]) for record in made.make_records(reached, column="alexnet/imagewoof")]
    Records(tmp_path / "results" / "imagewoof" / "records.jsonl").add(runs)
    text = blocks.with_blocks(marked, tmp_path)
    assert "Imagewoof" in text
    assert "not its column" in text
    assert "9,025" in text
    assert "+3.17" in text
    assert "(" + str(57.54) not in text  # the paper's figure is another data set's
