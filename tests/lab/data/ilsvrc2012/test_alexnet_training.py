"""Test training AlexNet on ILSVRC-2012, from tars or folders to a record."""

import shutil

import pytest
import torch
from made_ilsvrc import TRAIN, TRUTH, WNIDS, lay_out, read_images
from torch import nn
from typer.testing import CliRunner

from hullo.lab.cli import app
from hullo.lab.data.augment import draw_order
from hullo.lab.data.ilsvrc2012.augment import center_crops, crop, draw_crops
from hullo.lab.data.release import DataError
from hullo.lab.networks import NETWORKS, Entry
from hullo.lab.run.loaders import open_loader
from hullo.lab.run.training import Training
from hullo.lab.spec.records import Records
from hullo.lab.spec.run_spec import Spec

CPU = torch.device("cpu")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def home(tmp_path, made):
    """Return a data directory with the data set packed."""
    shutil.copytree(made, tmp_path / "ilsvrc2012")
    return tmp_path


class Small(nn.Sequential):
    """A network that trains fast on images as large as AlexNet's."""

    def __init__(self, act, in_channels, image_size, num_classes):
        super().__init__(nn.Conv2d(in_channels, 4, 11, stride=16), act(4), nn.Flatten(), nn.LazyLinear(num_classes))
        self(torch.zeros(1, in_channels, image_size, image_size))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(NETWORKS, "alexnet", Entry(Small))


@pytest.fixture
def loader(home):
    return open_loader(Spec.default("alexnet", "ilsvrc2012", "relu"), home, CPU)


def test_batch_has_cropped_images_minus_mean_and_packed_labels(loader):
    mean = read_images(loader.train, [*range(loader.count)]).double().mean(0).float()
    assert torch.allclose(loader.mean, mean)
    assert (loader.count, loader.eval_sizes, loader.task.num_classes, loader.task.image_size) == (
        12,
        {"test": 6},
        3,
        227,
    )
    seeds, epoch = torch.tensor([5, 5]), 1
    batches = [loader.load_batch(*batch) for batch in loader.batches(seeds, epoch, 5, 0)]
    assert [len(labels) for _, labels in batches] == [5, 5, 2]
    (order,) = draw_order(seeds[:1], epoch, 12)
    (crops,) = draw_crops(seeds[:1], epoch, order[None])
    expected = crop(read_images(loader.train, order.tolist()), crops, loader.mean)
    assert torch.equal(torch.cat([images for images, _ in batches]), expected)
    assert torch.equal(torch.cat([labels for _, labels in batches]), loader.train.labels[order])


def test_an_epoch_continues_from_any_step(loader):
    seeds = torch.tensor([5])
    _, *rest = loader.batches(seeds, 0, 5, 0)
    for one, two in zip(loader.batches(seeds, 0, 5, 1), rest, strict=True):
        assert all(map(torch.equal, one, two))


def test_evaluation_uses_the_center_crop_of_every_image_once(loader):
    images, labels = map(torch.cat, zip(*loader.eval_batches("test"), strict=True))
    assert torch.equal(labels, loader.val.labels)
    middle = crop(read_images(loader.val, [4]), center_crops(1), loader.mean)
    assert torch.equal(images[4:5], middle)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_images_have_the_dtype_of_the_first_convolution(loader, small, precision):
    spec = Spec.default("alexnet", "ilsvrc2012", "relu", epochs=1, batch_size=12, precision=precision)
    training = Training([spec], loader)
    seen, forward = [], training.population.forward
    training.population.forward = lambda images, **how: (seen.append(images), forward(images, **how))[1]
    for _ in training.advance():
        pass
    assert [len(images) for images in seen] == [12, 6]  # a step, and the evaluation
    for images in seen:
        assert images.dtype == getattr(torch, precision)
        assert images.is_contiguous(memory_format=torch.channels_last)


def test_recipe_of_alexnet_drops_the_last_batch_and_doubles_the_rate_of_biases(loader, small):
    training = Training([Spec.default("alexnet", "ilsvrc2012", "relu", epochs=1, batch_size=5)], loader)
    assert (training.steps, training.images) == (2, 10)  # of 12
    before = {name: p.detach().clone() for name, p in training.population.named_parameters()}
    next(training.advance())
    for name, p in training.population.named_parameters():
        gradient, rate = (p.grad, 0.02) if name.endswith("bias") else (p.grad + 5e-4 * before[name], 0.01)
        torch.testing.assert_close(p.detach(), before[name] - rate * gradient, rtol=0, atol=1e-7)
        assert p.grad.any()


def test_members_with_different_seeds_cannot_share_a_stream(loader):
    with pytest.raises(ValueError, match=r"same seed; got \[1, 2\]"):
        next(loader.batches(torch.tensor([1, 2]), 0, 5, 0))
    specs = [Spec.default("alexnet", "ilsvrc2012", "relu", seed=seed) for seed in (1, 2)]
    assert specs[0].population_key != specs[1].population_key


def test_command_trains_records_both_accuracies_and_resumes(home, tmp_path, small):
    train = ("train", "alexnet", "ilsvrc2012", "--activation", "affine(identity,relu)", "--data", home)
    train = (*train, "--batch-size", 4, "--epochs", 1, "--device", "cpu", "--output", tmp_path / "runs", "--quiet")
    result = invoke(*train)
    assert result.exit_code == 0, result.output
    (record,) = Records(tmp_path / "runs" / "records.jsonl").read()
    assert len(record.test_top5) == len(record.test_accuracy) == 1
    assert record.test_top5 == [100.0]  # of three classes
    assert record.images == []  # all were there
    assert record.coefficients[0] != record.coefficients[1]
    assert invoke(*train).exit_code == 0
    assert len(Records(tmp_path / "runs" / "records.jsonl").read()) == 1


def test_record_of_a_partial_pack_has_the_number_of_images(tmp_path, pack, small):
    source = lay_out(tmp_path / "source")
    next((source / "train").rglob("*.JPEG")).unlink()
    pack(source, tmp_path / "ilsvrc2012" / "packed", partial=True)
    train = ("train", "alexnet", "ilsvrc2012", "--activation", "relu", "--data", tmp_path)
    train = (*train, "--batch-size", 12, "--epochs", 1)
    assert invoke(*train, "--device", "cpu", "--output", tmp_path / "runs", "--quiet").exit_code == 0
    (record,) = Records(tmp_path / "runs" / "records.jsonl").read()
    assert record.images == [11, 6]


def test_partial_pack_has_the_classes_of_its_training_images(tmp_path, pack):
    source = lay_out(tmp_path / "source")
    shutil.rmtree(source / "train" / WNIDS[1])
    packed = pack(source, tmp_path / "ilsvrc2012" / "packed", partial=True)
    trained, tested = (packed.images(split).labels for split in ("train", "val"))
    assert (trained.unique().tolist(), tested.unique().tolist()) == ([0, 2], [0, 1, 2])  # as they were released
    loader = open_loader(Spec.default("alexnet", "ilsvrc2012", "relu"), tmp_path, CPU)
    assert (loader.task.num_classes, loader.eval_sizes) == (2, {"test": 4})
    (order,) = draw_order(torch.tensor([0]), 0, loader.count)
    batches = [batch[1] for batch in loader.batches(torch.tensor([0]), 0, 5, 0)]
    assert torch.equal(torch.cat(batches), trained[order] // 2)
    numbers = (tested != 1).nonzero().flatten()
    images, labels = map(torch.cat, zip(*loader.eval_batches("test"), strict=True))
    assert torch.equal(labels, tested[numbers] // 2)
    middle = crop(read_images(loader.val, numbers.tolist()), center_crops(4), loader.mean)
    assert torch.equal(images, middle)


def test_partial_pack_without_val_images_of_its_classes_is_rejected(tmp_path, pack):
    source = lay_out(tmp_path / "source")
    for wnid in WNIDS[1:]:
        shutil.rmtree(source / "train" / wnid)
    for number, label in enumerate(TRUTH, 1):
        if list(TRAIN)[label - 1] == WNIDS[0]:
            next((source / "val").rglob(f"*{number:08}.JPEG")).unlink()
    pack(source, tmp_path / "ilsvrc2012" / "packed", partial=True)
    with pytest.raises(DataError, match="no val image"):
        open_loader(Spec.default("alexnet", "ilsvrc2012", "relu"), tmp_path, CPU)


def test_training_resumes_from_any_step_bit_for_bit(home, small):
    spec = Spec.default("alexnet", "ilsvrc2012", "relu", epochs=1, batch_size=6)

    def open_training():
        return Training([spec], open_loader(Spec.default("alexnet", "ilsvrc2012", "relu"), home, CPU))

    whole, first, second = open_training(), open_training(), open_training()
    for _ in whole.advance():
        pass
    moments = first.advance()
    next(moments)
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    moments.close()
    for _ in second.advance():
        pass
    states = whole.state_dict(), second.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--val-size", 5), "val_size=5: ilsvrc2012 has its own validation images"),
        ((), "contains no finished pack; make it with: hullo data pack ilsvrc2012"),
    ],
)
def test_invalid_training_is_a_one_line_error(arguments, message, tmp_path):
    result = invoke("train", "alexnet", "ilsvrc2012", "--data", tmp_path, "--output", tmp_path / "runs", *arguments)
    assert result.exit_code != 0
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
