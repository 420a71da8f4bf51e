"""Convolutions of a population equal grouped ones; on the CPU they run in Triton's interpreter."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from compiled import run_without_interpreter

pytest.importorskip("triton")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"

from hullo.population.kernels import choice  # noqa: E402
from hullo.population.kernels.convolution import convolve, convolve_transposed, row_conv, square_gradient  # noqa: E402
from hullo.population.kernels.layouts import Shape, channels_last  # noqa: E402


@pytest.fixture(autouse=True)
def _exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float32, where cuDNN would choose TF32, and by the kernels where cuDNN is the default."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(
        choice, "compute", lambda key, ways, default: ways["windows" if default == "cudnn" else default]()
    )


class Case(NamedTuple):
    """Members, channels in and out, the side of a window, stride, padding, the sides of images, a bias or none."""

    members: int
    inputs: int
    outputs: int
    side: int
    stride: int
    padding: tuple[int, int]
    sides: tuple[int, int]
    biased: bool
    line: bool = False

    def draw(self, batch: int = 3, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Return images, weights and perhaps a bias."""
        generator = torch.Generator().manual_seed(sum(self[:5]))
        x = torch.randn(batch, self.members * self.inputs, *self.sides, generator=generator)
        filters = self.members * self.outputs
        weight = (
            torch.randn(filters, self.inputs, 1 if self.line else self.side, self.side, generator=generator) / self.side
        )
        bias = [torch.randn(filters, generator=generator)] if self.biased else []
        return [tensor.to(DEVICE, dtype).requires_grad_() for tensor in (x, weight, *bias)]

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        stride = (1 if self.line else self.stride, self.stride)
        padding = (*self.padding, 0, 0) if self.line else self.padding * 2
        return F.conv2d(F.pad(x, padding), weight, bias, stride, groups=self.members)

    def ours(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return convolve(x, weight, bias, members=self.members, stride=self.stride, padding=self.padding)[0]


CASES = {
    "same": Case(2, 4, 8, 3, 1, (1, 1), (6, 5), True),
    "as many out as in": Case(3, 8, 8, 3, 1, (1, 1), (4, 7), True),
    "row by row": Case(2, 16, 16, 3, 1, (1, 1), (6, 5), False),
    "row by row, padded behind": Case(1, 32, 64, 3, 1, (0, 1), (5, 4), False),
    "lenet5": Case(2, 20, 50, 5, 1, (0, 0), (8, 7), False),
    "half the sides": Case(3, 16, 32, 3, 2, (0, 1), (8, 6), True),
    "half the sides, odd": Case(2, 4, 6, 3, 2, (1, 1), (7, 5), False),
    "shortcut": Case(2, 16, 32, 1, 2, (0, 0), (6, 8), True),
    "widest": Case(2, 64, 64, 3, 1, (0, 0), (5, 5), False),
    "wider than a program": Case(2, 32, 150, 3, 1, (1, 1), (3, 4), True),
    "wide inputs": Case(2, 128, 24, 3, 1, (1, 1), (4, 3), False),
    "wide, half the sides": Case(2, 64, 128, 2, 2, (0, 0), (4, 4), True),
    "wide points": Case(1, 192, 96, 1, 1, (0, 0), (3, 3), False),
    "a line": Case(2, 8, 12, 5, 1, (2, 2), (1, 9), True, line=True),
    "a line, half the length": Case(2, 4, 4, 4, 2, (1, 1), (1, 10), True, line=True),
    "a line, padded before": Case(1, 32, 24, 3, 3, (2, 0), (1, 13), False, line=True),
    "lines of several rows": Case(2, 16, 4, 3, 1, (1, 1), (4, 5), False, line=True),
    "padded by more than the kernel": Case(2, 4, 6, 3, 1, (3, 4), (3, 4), True),
    "one member, stride three": Case(1, 3, 5, 4, 3, (1, 2), (7, 8), True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results_and_gradients_equal_those_of_a_grouped_convolution(case: Case) -> None:
    given = case.draw()
    precise = [tensor.detach().double().requires_grad_() for tensor in given]
    want, got = case.plain(*precise), case.ours(*given)
    gradient = torch.randn(want.shape, dtype=torch.float64, device=DEVICE)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(got, given, gradient.float())
    wanted = torch.autograd.grad(want, precise, gradient)
    for own, oracle in zip(found, wanted, strict=True):
        torch.testing.assert_close(own.double(), oracle, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_stacked_images_give_the_same_results_stacked(case: Case) -> None:
    x, *others = case.draw()
    stacked = x.detach().unflatten(1, (case.members, -1)).transpose(0, 1).requires_grad_()
    want, got = case.ours(x, *others), case.ours(stacked, *others)
    assert got.movedim(2, -1).is_contiguous()
    assert torch.equal(got.transpose(0, 1).flatten(1, 2), want)
    dy = torch.randn_like(want)
    dx, *wanted = torch.autograd.grad(want, (x, *others), dy)
    dstacked, *found = torch.autograd.grad(got, (stacked, *others), dy.unflatten(1, (case.members, -1)).transpose(0, 1))
    assert torch.equal(dstacked.transpose(0, 1).flatten(1, 2), dx)
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=3e-5)  # the other may be cuDNN's


@pytest.mark.parametrize("case", [CASES[name] for name in ("same", "row by row", "half the sides")])
def test_in_half_precision_only_numbers_are_rounded_and_no_sums(case: Case) -> None:
    given = case.draw(dtype=torch.float16)  # the interpreter has no products in bfloat16
    precise = [tensor.detach().double() for tensor in given]
    want, got = case.plain(*precise), case.ours(*given)
    assert got.dtype == torch.float16
    assert got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got.double(), want, rtol=2**-11, atol=1e-5)
    y, moments = convolve(
        *given[:2],
        *(given[2:] or [None]),
        members=case.members,
        stride=case.stride,
        padding=case.padding,
        measured=True,
    )
    assert torch.equal(y, got)
    assert moments is not None
    sums = torch.stack([got.double().sum((0, 2, 3)), got.double().square().sum((0, 2, 3))])
    torch.testing.assert_close(moments.double().sum(1), sums, rtol=1e-5, atol=1e-3)


TRANSPOSED = {
    "twice the sides": Case(2, 6, 18, 4, 2, (1, 1), (10, 12), True),
    "as many out as in": Case(2, 8, 8, 2, 2, (0, 0), (6, 4), True),
    "a row more": Case(2, 3, 20, 3, 2, (1, 1), (8, 6), False),
    "stride one": Case(1, 20, 4, 3, 1, (1, 1), (5, 4), True),
    "a line": Case(2, 6, 18, 4, 2, (1, 1), (1, 10), True, line=True),
}


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("case", TRANSPOSED.values(), ids=TRANSPOSED)
def test_transposed_convolutions_equal_grouped_ones(case: Case, stacked: bool) -> None:
    """A case is the convolution that is transposed: its inputs are the outputs here."""
    images, weight = case.draw()[:2]
    bias = torch.randn(images.shape[1], device=DEVICE, requires_grad=True) if case.biased else None
    x = torch.randn_like(case.plain(images, weight))
    leaves = [x.requires_grad_(), weight, *([] if bias is None else [bias])]
    stride, padding = ((1, case.stride), (0, case.padding[0])) if case.line else (case.stride, case.padding[0])
    extra = [size - full for size, full in zip(
        case.sides, F.conv_transpose2d(x, weight, bias, stride, padding, 0, case.members).shape[2:], strict=True
    )]  # fmt: skip
    want = F.conv_transpose2d(x.double(), weight.double(), bias if bias is None else bias.double(), stride, padding,
                              extra, case.members)  # fmt: skip
    given = x.unflatten(1, (case.members, -1)).transpose(0, 1) if stacked else x
    settings = {"members": case.members, "stride": case.stride, "padding": case.padding[0], "size": case.sides}
    got = convolve_transposed(given, weight, bias, **settings)
    got = got.transpose(0, 1).flatten(1, 2) if stacked else got
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    dy = torch.randn_like(want)
    for own, oracle in zip(
        torch.autograd.grad(got, leaves, dy.float()), torch.autograd.grad(want, leaves, dy), strict=True
    ):
        torch.testing.assert_close(own, oracle, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_member_that_is_not_finite_leaves_the_other_as_it_is(lost: int) -> None:
    case = CASES["half the sides, odd"]
    given, spoilt = case.draw(), case.draw()
    with torch.no_grad():
        spoilt[0].unflatten(1, (2, -1))[:, lost] = torch.nan
        spoilt[1].unflatten(0, (2, -1))[lost] = torch.inf
    results = []
    for x, weight in (given, spoilt):
        y = case.ours(x, weight).unflatten(1, (2, -1))[:, 1 - lost]
        dx, dweight = torch.autograd.grad(y.square().sum(), (x, weight))
        results.append((y, dx.unflatten(1, (2, -1))[:, 1 - lost], dweight.unflatten(0, (2, -1))[1 - lost]))
    assert all(torch.equal(own, other) for own, other in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("inputs", "outputs", "stride", "biased", "is_tuned", "default"),
    [
        (16, 16, 1, False, True, "rows"),
        (16, 16, 1, True, True, "cudnn"),
        (16, 16, 2, False, True, "cudnn"),
        (16, 16, 1, False, False, "cudnn"),
        (8, 17, 2, True, False, "windows"),
        (32, 96, 1, False, True, "windows"),
        (65, 65, 1, False, True, "cudnn"),
    ],
)
def test_by_default_cudnn_convolves_few_channels_and_many_that_stay_as_many(
    inputs: int, outputs: int, stride: int, biased: bool, is_tuned: bool, default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_conv, "is_tuned_for", lambda dtype, device: is_tuned)
    taken = []
    monkeypatch.setattr(choice, "compute", lambda key, ways, way: taken.append(way) or ways[way]())
    dtype = torch.bfloat16 if GPU else torch.float32  # the interpreter has no products in bfloat16
    shapes = [(2, 2 * inputs, 4, 4), (2 * outputs, inputs, 3, 3), *([(2 * outputs,)] if biased else [])]
    x, weight, *bias = (torch.randn(shape, device=DEVICE, dtype=dtype) for shape in shapes)
    convolve(x, weight, *(bias or [None]), members=2, stride=stride, padding=(1, 1))
    assert taken == [default]


@pytest.mark.parametrize(
    "case", [CASES[name] for name in ("row by row", "row by row, padded behind", "half the sides, odd", "shortcut")]
)
@pytest.mark.parametrize("stacked", [False, True])
def test_all_ways_agree(case: Case, stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute every pass by every way; the gradients of one sum are enough to see each number of each pass."""
    compared = []

    def compute(key: tuple[object, ...], ways: dict[str, choice.Way], default: str) -> choice.Outputs:
        expected = ways["windows"]()
        for name in ways:
            for one, other in zip(ways[name](), expected, strict=True):
                if one is not None and other is not None and one.shape == other.shape:
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
            compared.append((key[0], name))
        return expected

    monkeypatch.setattr(choice, "compute", compute)
    x, *others = case.draw()
    if stacked:
        x = x.detach().unflatten(1, (case.members, -1)).movedim(1, 0).contiguous().requires_grad_()
    case.ours(x, *others).sum().backward()
    passes = {"forward", "input gradient", "weight gradient"}
    assert {key for key, _ in compared} == passes
    assert {key for key, name in compared if name == "cudnn"} == (
        set() if stacked or case.padding[0] != case.padding[1] else passes
    )


@pytest.mark.gpu  # Triton's interpreter runs one program after the other
def test_every_run_gives_the_same_bits() -> None:
    case = CASES["half the sides"]
    given = case.draw(batch=8)
    runs = [torch.autograd.grad(case.ours(*given).square().sum(), given) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("inputs", "outputs", "side", "stride", "size"),
    [(20, 50, 5, 1, 14), (32, 64, 3, 2, 16), (16, 32, 3, 2, 31), (16, 32, 1, 2, 32), (32, 64, 1, 2, 16)],
)
def test_on_a_gpu_a_wide_population_equals_float32(
    inputs: int, outputs: int, side: int, stride: int, size: int
) -> None:
    case = Case(60, inputs, outputs, side, stride, (0, side // 3), (size, size), True)
    given = case.draw(batch=32, dtype=torch.bfloat16)
    precise = [tensor.detach().double().requires_grad_() for tensor in given]
    want, got = case.plain(*precise), case.ours(*given)
    gradient = torch.randn(want.shape, device=DEVICE).bfloat16()
    torch.testing.assert_close(got.double(), want, rtol=2**-8, atol=1e-4)
    found = torch.autograd.grad(got, given, gradient)
    for own, oracle in zip(found, torch.autograd.grad(want, precise, gradient.double()), strict=True):
        torch.testing.assert_close(own.double(), oracle, rtol=2**-7, atol=2e-3 * oracle.abs().max().item())


@pytest.mark.parametrize(("padding", "inner"), [((1, 1), 32), ((0, 1), 64), ((2, 2), 32)])
def test_the_gradient_of_squares_of_pixels_is_that_of_a_grouped_convolution(
    padding: tuple[int, int], inner: int
) -> None:
    case = CASES["half the sides, odd"]._replace(outputs=8, padding=padding)
    x, weight = (tensor.detach().double().requires_grad_() for tensor in case.draw())
    y = case.plain(x, weight)
    dy = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, dy)
    shape = Shape.of(case.members, weight, case.sides, case.stride, case.padding)
    given = (channels_last(tensor.detach().float()) for tensor in (dy, weight))
    found = square_gradient.input_gradient(*given, shape, square_gradient.Tile(64, inner, 4, 1))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=3e-5)


COMPILE = r"""
from compiled import compile_launches
launched = compile_launches()

import torch
import re
from hullo.population.kernels.convolution import convolve

for inputs, outputs in ((32, 64), (192, 64), (128, 192)):
    x = torch.empty(8, 2 * inputs, 16, 16, dtype=torch.bfloat16, device="meta", requires_grad=True)
    weight = torch.empty(2 * outputs, inputs, 3, 3, dtype=torch.bfloat16, device="meta")
    y, _ = convolve(x, weight, None, members=2, padding=(1, 1))
    y.backward(torch.empty_like(y))
for kernel in launched:
    loads = re.findall(r"ld\.global|cp\.async\.c[ag]", kernel.ptx)
    print(kernel.name, len(loads), len(re.findall(r"cp\.async\.cg[^;]* 0x10", kernel.ptx)))
"""


def test_compiled_for_a_gpu_windows_and_weights_travel_16_bytes_at_a_time() -> None:
    """This takes no GPU, and the interpreter cannot tell."""
    lines = run_without_interpreter("-c", COMPILE)
    assert [name for name, *_ in lines] == ["_convolve_kernel"] * 6  # three forward, three backward
    assert all(int(loads) == int(wide) > 0 for _, loads, wide in lines)
