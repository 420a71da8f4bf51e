"""Launch every kernel of populations on tensors without memory, compile what is launched, and print its resources."""

from __future__ import annotations

from compiled import compile_launches

launched = compile_launches() if __name__ == "__main__" else []  # before kernels are imported

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import hullo  # noqa: E402
from hullo.population.kernels import (  # noqa: E402
    attention,
    convolution,
    dropout,
    flat_optim,
    input_conv,
    linear,
    parametrize,
    recurrence,
    row_conv,
    square_gradient,
)
from hullo.population.kernels.act_pool_drop import combine_pool_drop  # noqa: E402
from hullo.population.kernels.bias_act import combine_biased  # noqa: E402
from hullo.population.kernels.bn_act import normalize_combine  # noqa: E402
from hullo.population.kernels.dropout import Dropout  # noqa: E402
from hullo.population.kernels.gn_act import group_norm_combine  # noqa: E402
from hullo.population.kernels.kinds import Kinds  # noqa: E402
from hullo.population.kernels.layer_norm import layer_norm  # noqa: E402
from hullo.population.kernels.layouts import Shape  # noqa: E402
from hullo.population.kernels.lrn import LocalResponseNorm  # noqa: E402

MEMBERS = 4
HALF, SINGLE, LONG = torch.bfloat16, torch.float32, torch.int64


def given(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    """Return an input of a member each, without memory."""
    return torch.empty(MEMBERS, *shape, dtype=dtype, device="meta")


def learned(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return given(*shape, dtype=dtype).requires_grad_()


def stacked(*shape: int) -> Tensor:
    """Return images (members, batch, channels, height, width) with channels last."""
    return given(*shape).movedim(-1, 2).requires_grad_()


def both_passes(*outputs: Tensor | None) -> None:
    made = [y for y in outputs if y is not None and y.requires_grad]
    torch.autograd.backward(made, [torch.empty_like(y) for y in made])


def launch_activations() -> None:
    bases = tuple(map(hullo.get_base, ("identity", "relu", "tanh")))
    rows, images = learned(3, dtype=SINGLE), stacked(8, 6, 6, 32)
    side_by_side = images.detach().transpose(0, 1).flatten(1, 2).requires_grad_()
    scale, shift, bias = (learned(32, dtype=SINGLE).flatten() for _ in range(3))
    running = [given(32, dtype=SINGLE).flatten() for _ in range(2)]
    for kinds in (None, Kinds((((0, 1), True), ((2,), False)), given(dtype=torch.int32))):
        both_passes(
            combine_pool_drop(side_by_side, rows, bases, Dropout(*NUMBERS, 0, 0.5), bias=bias, flat=True, kinds=kinds)
        )
        settings = {"momentum": 0.1, "eps": 1e-5, "residual": images, "kinds": kinds}
        both_passes(*normalize_combine(images, *running, scale, shift, rows, bases, True, **settings))
        for more in ({"bias": bias}, {"dtype": SINGLE}):
            grouped = {"width": 8, "eps": 1e-5, "kinds": kinds} | more
            both_passes(*group_norm_combine(images, scale, shift, rows, bases, **grouped))
        x = learned(64, 32)
        y = combine_biased(x, learned(32), rows, bases, kinds)
        both_passes(*torch.autograd.grad(y, x, torch.empty_like(y).requires_grad_(), create_graph=True))
    both_passes(LocalResponseNorm.apply(side_by_side, 32, 5, 1.0))  # type: ignore[no-untyped-call]
    raw, codes, uses = learned(2, 3, dtype=SINGLE), given(2, 3, dtype=torch.int8), given(2, 2, dtype=torch.int32)
    order = given(2, dtype=torch.int32).flatten()
    both_passes(*parametrize.parametrize(raw, raw.detach().double(), codes, order, uses.flatten(0, 1), [4, 4]))
    parametrize.restrict(raw.detach(), raw.detach(), codes)


def launch_features() -> None:
    q, rates = learned(2, 3, 64, 64), given(dtype=torch.float64)
    both_passes(attention.attend(q, q, q, None, Dropout(*NUMBERS, 0, 0.1), is_causal=True))
    both_passes(attention.attend(q, q, q, given(2, 1, 1, 64, dtype=SINGLE), Dropout(*NUMBERS, 0, rates)))
    both_passes(*(dropout.drop(q, Dropout(*NUMBERS, 0, rate)) for rate in (0.1, rates)))
    x, bias = learned(64, 32), learned(32)
    drop = Dropout(*NUMBERS, 0, 0.1)
    both_passes(*layer_norm(x, x, bias, bias, bias, eps=1e-5, dtype=SINGLE, dropout=drop, copy=HALF))
    wide = learned(512, 64, dtype=SINGLE)
    both_passes(linear.linear(wide, learned(64, 64, dtype=SINGLE), learned(64, dtype=SINGLE)))
    linear.multiply_blocks(given(32, 1250), given(1250, 500), linear.FEW_ROWS)
    linear.multiply_blocks(given(1250, 32), given(32, 500), linear.FEW_INNER)
    for kind, gates in (("lstm", 4), ("gru", 3)):
        weights = recurrence.Weights(learned(gates * 32, 24), learned(gates * 32, 32))
        states = [learned(16, 32), learned(16, 32)]
        both_passes(*recurrence.run_direction(kind, learned(2, 16, 24), states, weights, False))


def launch_convolutions() -> None:
    for channels, side, outputs, dtype, moved in (
        (3, 3, 16, HALF, False),
        (3, 3, 16, HALF, True),
        (5, 5, 64, HALF, True),  # the largest that are served
        (3, 3, 64, SINGLE, True),
    ):
        weight = learned(outputs, channels, side, side, dtype=SINGLE)
        assert input_conv.is_served(weight.shape[1:], dtype)
        x = torch.empty(64, channels, 32, 32, dtype=torch.uint8, device="meta") if moved else given(8, channels, 32, 32)
        chosen = (given(8, dtype=LONG), given(8, 3, dtype=LONG)) if moved else (None, None)
        both_passes(
            input_conv.convolve(x, *chosen, weight.flatten(0, 1), None, same=True, dtype=dtype, measured=True)[0]
        )
    for inputs, outputs in ((32, 64), (192, 64), (128, 192)):
        weight, bias = learned(outputs, inputs, 3, 3).flatten(0, 1), learned(outputs).flatten()
        y, _ = convolution.convolve(stacked(8, 16, 16, inputs), weight, bias, members=MEMBERS, padding=(1, 1))
        both_passes(y)
    for tiles, launch in (
        (row_conv.TILES, lambda x, dy, *rest: row_conv.convolve_rows(x, *rest)),
        (row_conv.MOMENT_TILES, lambda x, dy, *rest: row_conv.convolve_rows(x, *rest, measured=True)),
        (row_conv.WEIGHT_TILES, lambda x, dy, _, *rest: row_conv.weight_gradient(dy, x, *rest)),
        (square_gradient.TILES, lambda x, dy, *rest: square_gradient.input_gradient(dy, *rest)),
    ):
        stride = 2 if tiles is square_gradient.TILES else 1
        for (side, inputs, outputs), tile in tiles.items():  # type: ignore[attr-defined]
            weight = given(outputs, inputs, side, side).flatten(0, 1)
            shape = Shape.of(MEMBERS, weight, (16, 16), stride, (side // 2, side // 2))
            launch(stacked(8, 16, 16, inputs), stacked(8, *shape.out_size, outputs), weight, shape, tile)  # type: ignore[no-untyped-call]


def launch_optimizers() -> None:
    layout = flat_optim.Layout([given(8, dtype=SINGLE), given(3, 5, dtype=SINGLE)])
    values, rates, counts = layout.buffer(SINGLE), given(dtype=torch.float64), torch.empty(2, device="meta").double()
    for function, settings in ((flat_optim.sgd, 2), (flat_optim.rmsprop, 3), (flat_optim.adam, 7)):
        rule = flat_optim.Rule(function, (0.5,) * settings)
        state = [values] * (2 if function is flat_optim.adam else 1)
        gradients = [given(8, dtype=SINGLE), given(3, 5)]
        flat_optim.update(layout, values, state, gradients, rates=rates, decays=rates, counts=counts, rule=rule)


def launch_large() -> None:
    """Launch what takes more programs than a dimension of a grid but the first has, or addresses of 64 bits."""
    x, bias, identity = learned(2**22, 256), learned(256), (hullo.get_base("identity"),)
    y = combine_biased(x, bias, learned(1, dtype=SINGLE), identity)
    both_passes(*torch.autograd.grad(y, x, torch.empty_like(y).requires_grad_(), create_graph=True))
    both_passes(
        linear.linear(x, learned(32, 256), learned(32)), linear.linear(learned(2**22, 32), learned(256, 32), bias)
    )
    both_passes(*layer_norm(x, x, bias, bias, bias, eps=1e-5, dtype=HALF), dropout.drop(x, Dropout(*NUMBERS, 0, 0.1)))
    images, scale = stacked(2**10, 2**9, 2**9, 32), learned(32, dtype=SINGLE).flatten()
    statistics = [given(32, dtype=SINGLE).flatten() for _ in range(2)]
    both_passes(
        *normalize_combine(
            images, *statistics, scale, scale, learned(1, dtype=SINGLE), identity, True, momentum=0.1, eps=1e-5
        )
    )
    both_passes(convolution.convolve(images, learned(48, 32, 3, 3).flatten(0, 1), None, members=MEMBERS)[0])


NUMBERS = given(dtype=LONG), given(dtype=LONG)

if __name__ == "__main__":
    for launch_some in (launch_activations, launch_features, launch_convolutions, launch_optimizers, launch_large):
        launch_some()
    for kernel in launched:
        print(kernel.module.replace(" ", "_"), kernel.stack, kernel.shared)
