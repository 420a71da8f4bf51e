"""Compare members alone with their population: outputs, gradients and buffers."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch.nn.utils import stateless

from hullo._compat import without_saved_tensor_hooks
from hullo.population.draws import SameDraws
from hullo.population.members import fork_rng
from hullo.population.program import Program
from hullo.population.rules import Context
from hullo.population.trace.export import register_dataclasses
from hullo.population.trace.graph import disable_cache
from hullo.population.values import Value

if TYPE_CHECKING:
    from hullo.population.population import Population

CALLS, MOST_MEMBERS = 2, 4


class ContractError(RuntimeError):
    """A member alone computes something else than in its population; the message says what and where."""


@dataclass
class Report:
    """Hold the members that were compared, and the largest relative difference of each kind."""

    members: Sequence[int]
    outputs: float = 0.0
    gradients: float = 0.0
    buffers: float = 0.0

    def __str__(self) -> str:
        return (
            f"members {', '.join(map(str, self.members))} compute the same alone and in the population, over {CALLS} "
            f"calls in training and in evaluation mode: outputs within {self.outputs:.1e}, gradients within "
            f"{self.gradients:.1e}, buffers within {self.buffers:.1e}"
        )


def check_population(population: Population, args: tuple[Any, ...], kwargs: dict[str, Any], in_dims: Any) -> Report:
    """Compare some members alone with their population, as :meth:`Population.check` says."""
    values, spec = population._wrap(args, kwargs, in_dims)
    values = [population._in_own_precision(item) if type(item) is Value else item for item in values]
    with _undisturbed(population):
        try:
            return _compare_modes(population, values, spec)
        except ContractError:  # rounding decides at a kink or a tie, but not there again with other inputs
            with suppress(ContractError):
                return _compare_modes(population, [_move(item) for item in values], spec)
            raise


def _compare_modes(population: Population, values: Sequence[Any], spec: Any) -> Report:
    """Compare members in the mode of a population, in which modules may have modes of their own, and in the other."""
    report = Report(_choose(population))
    modes = [(module, module.training) for part in (population, population._empty[0]) for module in part.modules()]
    try:
        with population._keeping_state():
            _Session(population, values, spec).compare(report)
            population.train(not population.training)
            _Session(population, values, spec).compare(report)
    finally:
        for module, mode in modes:
            module.training = mode
    return report


def _move(item: Any) -> Any:
    """Return an input with its floating-point numbers up to 1 % smaller."""
    if type(item) is not Value or not item.tensor.is_floating_point():
        return item
    tensor = item.tensor.detach()
    moved = tensor * (1 - 0.01 * torch.rand_like(tensor))
    return Value(moved.requires_grad_(item.tensor.requires_grad), item.dim)


@contextmanager
def check_first_call(populations: Iterable[Population]) -> Iterator[None]:
    """Check each population on the inputs of its first call within the block."""
    hooks: dict[nn.Module, Any] = {}

    def check(population: Any, args: Any, kwargs: Any) -> None:
        hooks.pop(population).remove()
        try:
            population.check(*args, **kwargs)
        except torch.OutOfMemoryError:
            warnings.warn("the population was not checked: there is too little memory to compare it", stacklevel=2)

    for population in populations:
        hooks[population] = population.register_forward_pre_hook(check, with_kwargs=True)
    try:
        yield
    finally:
        for hook in hooks.values():
            hook.remove()


def _choose(population: Population) -> list[int]:
    """Return some members: the first of each set of activation classes and rates, and the last."""
    kinds: dict[Any, int] = {}
    for k, network in enumerate(population._empty):
        modules = [network.get_submodule(site.path) for site in population.activations.sites]
        kinds.setdefault((*map(type, modules), *population._kinds[k]), k)
    return sorted({*list(kinds.values())[: MOST_MEMBERS - 1], len(population) - 1})


@contextmanager
def _undisturbed(population: Population) -> Iterator[None]:
    """Keep PyTorch's generators; compute with the parameters themselves, without autocast."""
    copies, population.copies = population.copies, {}
    autocast = torch.autocast(population.seeds.device.type, enabled=False)
    device = torch.cuda.device_of(population.seeds)  # type: ignore[no-untyped-call]
    try:
        with (
            fork_rng(),
            autocast,
            device,
            torch.inference_mode(False),
            torch.enable_grad(),
            without_saved_tensor_hooks(),
        ):
            yield
    finally:
        population.copies = copies


class _Session:
    """Call a population and members alone on the same inputs, in one mode."""

    def __init__(self, population: Population, values: Sequence[Any], spec: Any) -> None:
        self.population, self.values, self.spec = population, values, spec
        self.program, _ = population._program(values, spec)
        self.made = _outputs_by_module(self.program)
        self.found: dict[fx.Node, dict[int, Tensor]] = {}  # what members computed in the population's last call
        self.module = ""  # the first one that differed in the last call of a member

    def compare(self, report: Report) -> None:
        """Raise a ContractError for the first difference of a member alone; else note the differences."""
        population = self.population
        alone = {k: population[k] for k in report.members}

        def observe(node: fx.Node, value: Any) -> None:
            if isinstance(value, Value):
                self.found[node] = {k: value.select(k).detach().clone() for k in alone}

        for network in alone.values():
            disable_cache(network)
        for call in range(1, CALLS + 1):
            values = [_copy(item) if type(item) is Value else item for item in self.values]
            outputs = population._run(values, self.spec, observe)
            gradients = _differentiate(outputs, dict(population.named_parameters()), len(population))
            with stateless._reparametrize_module(population, gradients):  # its members hold their gradients
                own = {k: dict(population[k].named_parameters()) for k in alone}
            for k, network in alone.items():
                where = f"member {k} alone differs from the population, call {call} in {_mode(population)} mode"
                try:
                    result, expected = self._call_alone(k, network)
                except Exception as error:
                    text = f"it raises {type(error).__name__}: {error}{self.module}; {_CONTRACT}"
                    raise ContractError(f"{where}: {text}") from error
                named = {f"output {i}": item for i, item in enumerate(_tensors(result))}
                found = {f"output {i}": item[k] for i, item in enumerate(_tensors(outputs))}
                report.outputs = max(report.outputs, _compare(where, "outputs", found, named, self.module))
                buffers = dict(population[k].named_buffers()), dict(network.named_buffers())
                report.buffers = max(report.buffers, _compare(where, "buffers", *buffers, self.module))
                report.gradients = max(report.gradients, _compare(where, "gradients", own[k], expected))

    def _call_alone(self, k: int, network: nn.Module) -> tuple[Any, dict[str, Tensor]]:
        """Return what a member returns with the random numbers of the last call of the population, and its gradients.

        Compare what its modules return.
        """
        leaves = [_copy(item).select(k) if isinstance(item, Value) else item for item in self.values]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        population, span = self.population, slice(k, k + 1)
        context = Context(1, population.seeds[span], population.steps[span], first=population.first_sample)
        names, counts, self.module = {module: path for path, module in network.named_modules()}, Counter[str](), ""

        def compare(module: nn.Module, inputs: Any, output: Any) -> None:
            path, expected = names[module], _tensors(output)
            nodes = [node for node in self.made.get((path, counts[path]), ()) if node in self.found]
            found = [self.found[node][k] for node in nodes]
            counts[path] += 1
            if not self.module and len(found) == len(expected):
                _, text = _difference("outputs", dict(enumerate(found)), dict(enumerate(expected)))
                what = f"{path!r} ({type(module).__name__}), which {text.partition(' ')[2]}"
                self.module = f"; the first module that differs is {what}" if text else ""

        hooks = [module.register_forward_hook(compare) for module in names]
        parameters = {name: item for name, item in network.named_parameters() if item.requires_grad}
        with SameDraws(self.program.numbers, context):
            try:
                result = network(*args, **kwargs)
            finally:
                for hook in hooks:
                    hook.remove()
            register_dataclasses(result)
            return result, _differentiate(result, parameters)


_CONTRACT = (
    "forward may compute with inputs, parameters and buffers, change buffers, and draw random numbers from torch; let "
    "what it keeps be a buffer, and what it reads elsewhere an input"
)
_DERIVATIVES = (
    "the derivative of forward is that of its operations: write others as x + (f(x) - x).detach(), without a "
    "torch.autograd.Function or a hook, and take derivatives outside of forward"
)


def _mode(population: Population) -> str:
    return "training" if population.training else "evaluation"


def _copy(value: Value) -> Value:
    tensor = value.tensor.detach().clone()
    return Value(tensor.requires_grad_(value.tensor.requires_grad), value.dim)


def _tensors(tree: Any) -> list[Tensor]:
    return [item for item in pytree.tree_leaves(tree) if isinstance(item, Tensor)]


def _differentiate(outputs: Any, parameters: Mapping[str, Tensor], members: int = 0) -> dict[str, Tensor]:
    """Return the gradients of a sum of outputs with fixed random weights, the same for all members."""
    chosen, weights = [], []
    for i, y in enumerate(_tensors(outputs)):
        shape = y.shape[1:] if members else y.shape
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(y)
        if y.requires_grad:
            chosen.append(y)
            weights.append(weight.expand(y.shape))
    result = {name: torch.zeros_like(item) for name, item in parameters.items()}
    learned = [name for name, item in parameters.items() if item.requires_grad]
    if chosen and learned:
        gradients = torch.autograd.grad(chosen, [parameters[name] for name in learned], weights, allow_unused=True)
        found = zip(learned, gradients, strict=True)
        result.update({name: gradient.to_dense() for name, gradient in found if gradient is not None})
    return result


def _compare(
    where: str, kind: str, found: Mapping[Any, Tensor], expected: Mapping[Any, Tensor], module: str = ""
) -> float:
    """Return the largest relative difference of tensors; raise a ContractError for one beyond rounding."""
    worst, text = _difference(kind, found, expected)
    if text:
        raise ContractError(f"{where}: {text}{module}; {_DERIVATIVES if kind == 'gradients' else _CONTRACT}")
    return worst


def _difference(kind: str, found: Mapping[Any, Tensor], expected: Mapping[Any, Tensor]) -> tuple[float, str]:
    """Return the largest relative difference of tensors, as norms, and what the first beyond rounding is.

    A tensor that is zero apart from rounding is compared with the largest of its kind.
    """
    if len(found) < len(expected):
        return torch.inf, f"it has {len(expected)} {kind} alone, {len(found)} in the population"
    wide = {name: (_widen(found[name]), _widen(item)) for name, item in expected.items()}
    largest = max((float(pair[1].nan_to_num(0, 0, 0).norm()) for pair in wide.values()), default=0.0)
    worst = 0.0
    for name, (one, other) in reversed(wide.items()) if kind == "gradients" else wide.items():
        what = {"gradients": f"gradient of {name}", "buffers": f"buffer {name}"}.get(kind, str(name))
        if one.shape != other.shape:
            return torch.inf, f"{what} has shape {tuple(other.shape)} alone, {tuple(one.shape)} in the population"
        is_same = (one == other) | (one.isnan() & other.isnan())
        apart = torch.where(is_same, 0.0, one - other).nan_to_num(torch.inf, torch.inf, torch.inf)
        tolerance, eps = _rounding(expected[name], kind)
        norm = float(other.nan_to_num(0, 0, 0).norm())
        relative = float(apart.norm()) / max(norm + 100 * eps / tolerance * largest, 1e-30)
        worst = max(worst, relative)
        if relative > tolerance:
            share = f"{relative:.2%} of its norm" if other.any() else "and is zero alone"
            return worst, f"{what} differs by {float(apart.abs().max()):.2g} at most, {share}"
    return worst, ""


def _widen(tensor: Tensor) -> Tensor:
    """Return numbers of any type as real numbers in float64."""
    tensor = tensor.detach()
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _rounding(tensor: Tensor, kind: str) -> tuple[float, float]:
    """Return the relative difference that rounding may cause in a tensor, and in a number.

    GPUs may compute products of float32 with fewer digits. Gradients jump at kinks: one input of a ReLU that rounds to
    the other side of zero changes the gradient of a bias by its share of the sum.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 1e-3, 1e-6
    is_float32 = tensor.dtype == torch.float32
    short = torch.finfo(torch.float16).eps
    eps = short if is_float32 and tensor.is_cuda else torch.finfo(tensor.dtype).eps
    return (short if is_float32 and kind == "gradients" else eps) ** 0.5, eps


def _outputs_by_module(program: Program) -> dict[tuple[str, int], list[fx.Node]]:
    """Return the nodes whose values leave each call of a module, by its path and the number of the call."""
    inside: dict[str, list[fx.Node]] = {}
    paths: dict[str, str] = {}
    for node in program.graph.nodes:
        for key, (path, _) in node.meta.get("nn_module_stack", {}).items():
            inside.setdefault(key, []).append(node)
            paths[key] = path.removeprefix("network").removeprefix(".")
    counts, result = Counter[str](), dict[tuple[str, int], list[fx.Node]]()
    for key, nodes in inside.items():
        own = set(nodes)
        leaving = [node for node in nodes if any(user not in own for user in node.users)]
        result[paths[key], counts[paths[key]]] = leaving
        counts[paths[key]] += 1
    return result
