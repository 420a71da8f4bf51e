"""Test that a spec identifies a run and round-trips as text."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab.data import RELEASES
from hullo.lab.networks import NETWORKS
from hullo.lab.spec.environment import choose_device
from hullo.lab.spec.recipes import AUGMENTATIONS, OWN_RECIPE, RECIPES, STREAMED
from hullo.lab.spec.run_spec import Spec, identify

RATES = st.floats(0, 1e3, allow_subnormal=True)
SPECS = st.builds(
    Spec,
    st.sampled_from(["lenet5", "kerasnet", "resnet56"]),
    st.sampled_from(["fashion-mnist", "cifar10", "fashion-mnist-sample"]),
    st.sampled_from(
        ["relu", "leaky_relu(0.2)", "convex(identity,relu)", "affine(identity,relu,parametrization=free,per=channel)"]
    ),
    seed=st.integers(0, 2**63 - 1),
    epochs=st.integers(1, 1000),
    batch_size=st.integers(1, 1000),
    lr=RATES,
    optimizer=st.sampled_from(["rmsprop", "sgd", "adam", "adamw"]),
    schedule=st.sampled_from(["constant", "cosine"])
    | st.builds("{}:{}".format, st.sampled_from(["inverse", "step"]), st.floats(1e-9, 1e9)),
    weight_decay=RATES,
    augment=st.sampled_from(["none", "flip", "shift:0.05", "flip,shift:0.1", "shift:0.25,flip", ""]),
    coefficient_lr_scale=RATES,
    precision=st.sampled_from(["float32", "bfloat16"]),
    val_size=st.integers(0, 5000),
)
PLAIN = Spec("lenet5", "cifar10", "relu")
OTHER = {
    "network": "kerasnet",
    "data": "fashion-mnist",
    "activation": "tanh",
    "seed": 1,
    "epochs": 51,
    "batch_size": 33,
    "lr": 2e-4,
    "optimizer": "adamw",
    "schedule": "inverse:1e-5",
    "weight_decay": 1e-4,
    "augment": "flip",
    "coefficient_lr_scale": 2,
    "precision": "bfloat16",
    "val_size": 100,
    "settings": "lr=0.01 width=64",
}


@given(SPECS)
def test_spec_text_round_trips(spec: Spec) -> None:
    assert Spec.parse(str(spec)) == spec
    assert hash(Spec.parse(str(spec))) == hash(spec)


@pytest.mark.parametrize("name", [field.name for field in fields(Spec)])
def test_any_changed_field_is_another_run(name: str) -> None:
    changed = replace(PLAIN, **{name: OTHER[name]})
    assert changed != PLAIN
    assert changed.id != PLAIN.id


@pytest.mark.parametrize("name", [field.name for field in fields(Spec)])
def test_population_key_ignores_activation_seed_rates_and_decay(name: str) -> None:
    changed = replace(PLAIN, **{name: OTHER[name]})
    assert (changed.population_key == PLAIN.population_key) == (
        name in {"activation", "seed", "lr", "schedule", "weight_decay", "coefficient_lr_scale"}
    )


def test_per_channel_and_per_layer_share_a_population() -> None:
    rows = ("relu", "prelu", "affine(identity,relu)", "convex(relu,tanh,per=channel)")
    assert len({replace(PLAIN, activation=row).population_key for row in rows}) == 1


def test_defaults_depend_on_the_network_and_can_be_overridden() -> None:
    assert Spec.default("lenet5", "cifar10", "relu", epochs=None, batch_size=None) == PLAIN
    assert Spec.default("lenet5", "cifar10", "relu", epochs=3, lr=None).epochs == 3
    whole, short = (Spec.default("alexnet", "cifar10", "relu", epochs=epochs, lr=None) for epochs in (None, 45))
    assert (whole.epochs, whole.batch_size, whole.lr, whole.schedule) == (90, 256, 0.01, "step:20")
    assert (short.epochs, short.batch_size, short.lr, short.schedule) == (45, 256, 0.01, "step:10")
    assert (whole.optimizer, whole.weight_decay) == ("sgd", 5e-4)
    assert Spec.default("alexnet", "cifar10", "relu", schedule="constant").schedule == "constant"
    own = Spec.default("net:Net@01234567", "images@89abcdef", "own")
    assert (own.optimizer, own.lr, own.augment, own.recipe) == ("adam", 1e-3, "none", OWN_RECIPE)


def test_schedules_of_one_kind_share_a_population() -> None:
    result = {
        replace(PLAIN, schedule=text).population_key for text in ("inverse:1e-6", "inverse:3e-5", "constant", "step:3")
    }
    assert len(result) == 3
    own = Spec.default("net:Net@01234567", "images@89abcdef", "own")
    assert own.population_key != replace(own, activation="relu").population_key


def test_equivalent_activations_are_one_run() -> None:
    spellings = ("convex(identity,relu)", " convex( relu , identity ) ")
    assert len({Spec("lenet5", "cifar10", row).id for row in spellings}) == 1
    assert Spec("lenet5", "cifar10", "relu", lr=1) == Spec("lenet5", "cifar10", "relu", lr=1.0)


def test_identity_of_a_population_depends_on_member_order() -> None:
    other = replace(PLAIN, seed=1)
    assert identify([PLAIN, other]) != identify([other, PLAIN])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("network", "vgg", "unknown network 'vgg'; available: lenet5, .*my_network.py:Net"),
        ("data", "mnist", "unknown data set 'mnist'; available: fashion-mnist"),
        ("activation", "rellu", "invalid activation 'rellu'"),
        ("precision", "float8", "unknown precision 'float8'; available: float32, bfloat16"),
        ("seed", -1, "seed=-1: must be an integer of at least 0"),
        ("seed", 2**63, "seed=9223372036854775808"),
        ("epochs", 0, "epochs=0: must be an integer of at least 1"),
        ("batch_size", 1.5, "batch_size=1.5"),
        ("lr", -1e-4, "lr=-0.0001: must be a finite number of at least 0"),
        ("lr", float("nan"), "lr=nan"),
        ("weight_decay", float("inf"), "weight_decay=inf"),
        ("optimizer", "lion", "unknown optimizer 'lion'; available: rmsprop, sgd, adam, adamw"),
        ("schedule", "cosine:3", "schedule='cosine:3'"),
        ("schedule", "step", "schedule='step'"),
        ("schedule", "inverse:-1", "schedule='inverse:-1'"),
        ("schedule", "inverse:nan", "schedule='inverse:nan'"),
        ("augment", "shift:2", "augment='shift:2'"),
        ("augment", "shift:1", "augment='shift:1'"),
        ("augment", "mixup", "augment='mixup'"),
        ("augment", "flip,crop", "augment='flip,crop' is not supported with cifar10"),
        ("activation", "own", "activation='own'.*lenet5"),
    ],
)
def test_invalid_spec_is_rejected(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match="^" + message.replace("(", r"\(")):
        replace(PLAIN, **{name: value})


@pytest.mark.parametrize("text", ["", "lenet5 relu", "lenet5/cifar10", "lenet5/cifar10 relu seed", "a/b relu color=1"])
def test_invalid_text_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=f"^invalid spec '{text}': must be network/data"):
        Spec.parse(text)


def test_valid_names_match_networks_and_data_sets() -> None:
    assert set(NETWORKS) == set(RECIPES)
    assert {*RELEASES, *STREAMED} == set(AUGMENTATIONS)


@pytest.mark.parametrize("count", [0, 2])
def test_a_gpu_that_is_not_there_is_refused(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert all(choose_device(f"cuda:{index}").index == index for index in range(count))
    with pytest.raises(ValueError, match=f"finds {count} CUDA devices"):
        choose_device(f"cuda:{count}")
