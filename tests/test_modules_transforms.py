"""Test that hulls are the same functions in torch.func transforms, compiled and exported."""

from __future__ import annotations

import io
import pickle
import shutil

import pytest
import torch
from torch import Tensor, nn

import hullo
from hullo.modules import Hull
from made_hulls import every_hull, uneven


class TestTransforms:
    @every_hull
    def test_functional_call_and_grad_agree_with_autograd(self, hull: type[Hull], parametrization: str) -> None:
        act, x = uneven(hull, parametrization, 2), torch.randn(3, 4)
        act(x).square().sum().backward()
        actual = torch.func.grad(lambda p: torch.func.functional_call(act, p, (x,)).square().sum())(
            {act.raw_name: act.raw.detach()}
        )
        torch.testing.assert_close(actual[act.raw_name], act.raw.grad)

    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_vmapped_ensemble_equals_its_members(self, hull: type[Hull], parametrization: str, groups: int) -> None:
        members = [nn.Sequential(nn.Linear(4, 4), uneven(hull, parametrization, groups)) for _ in range(3)]
        for k, member in enumerate(members):
            with torch.no_grad():
                member[1].raw.add_(0.01 * k * torch.arange(member[1].raw.shape[-1]))
        parameters, buffers = torch.func.stack_module_state(members)
        x = torch.randn(5, 4)

        def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(members[0], (parameters, buffers), (x,)).square().sum()

        actual = torch.vmap(torch.func.grad(loss))(parameters, buffers)
        for k, member in enumerate(members):
            member(x).square().sum().backward()
            torch.testing.assert_close(actual[f"1.{member[1].raw_name}"][k], member[1].raw.grad, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("parametrization", hullo.coefficients.SIMPLEX.choices)
    def test_jacobians_by_both_modes_agree(self, parametrization: str) -> None:
        act = uneven(hullo.ConvexHull, parametrization, dtype=torch.float64)
        x = torch.randn(5, dtype=torch.float64)

        def function(raw: Tensor) -> Tensor:
            return torch.func.functional_call(act, {act.raw_name: raw}, (x,))

        raw = act.raw.detach()
        torch.testing.assert_close(torch.func.jacfwd(function)(raw), torch.func.jacrev(function)(raw))


class TestSymbolicTrace:
    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_traced_model_has_equal_values_and_gradients(
        self, hull: type[Hull], parametrization: str, groups: int
    ) -> None:
        model = nn.Sequential(nn.Linear(4, 4), uneven(hull, parametrization, groups, channel_dim=-1), nn.Linear(4, 2))
        self.check_traced(model, torch.randn(3, 5, 4))

    @staticmethod
    def check_traced(model: nn.Module, x: Tensor) -> None:
        graph = torch.fx.symbolic_trace(model)
        results = []
        for function in (model, graph, pickle.loads(pickle.dumps(graph))):
            leaf = x.clone().requires_grad_()
            y = function(leaf)
            gradients = torch.autograd.grad(y.square().sum(), (leaf, *function.parameters()))
            names = ("x", *(name for name, _ in function.named_parameters()))
            results.append({"y": y, **dict(zip(names, gradients, strict=True))})
        for actual in results[1:]:
            assert actual.keys() == results[0].keys()
            assert all(torch.equal(actual[name], value) for name, value in results[0].items())


class TestCompilers:
    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_compiled_modules_have_no_graph_break(self, hull: type[Hull], parametrization: str, groups: int) -> None:
        self.check_compiled(uneven(hull, parametrization, groups), "aot_eager", batches=(3, 5))

    @pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")
    def test_inductor_compiles_a_module(self) -> None:
        self.check_compiled(uneven(hullo.ConvexHull, "projection", 2), "inductor", batches=(3,))

    @staticmethod
    def check_compiled(module: nn.Module, backend: str, batches: tuple[int, ...]) -> None:
        compiled = torch.compile(module, fullgraph=True, backend=backend)
        for batch in batches:  # a second one is compiled with a symbol for its size
            x = torch.randn(batch, 4, requires_grad=True)
            results = []
            for function in (module, compiled):
                y = function(x)
                results.append((y, *torch.autograd.grad(y.square().sum(), (x, *module.parameters()))))
            for plain, actual in zip(*results, strict=True):
                torch.testing.assert_close(actual, plain, rtol=1e-5, atol=1e-5)

    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_exported_module_accepts_any_batch_size(self, hull: type[Hull], parametrization: str, groups: int) -> None:
        act = uneven(hull, parametrization, groups)
        sizes = ({0: torch.export.Dim("batch")},)
        exported = torch.export.export(act, (torch.randn(3, 4),), dynamic_shapes=sizes)
        file = io.BytesIO()
        torch.export.save(exported, file)
        file.seek(0)
        loaded = torch.export.load(file).module()
        for batch in (1, 2, 7):
            x = torch.randn(batch, 4)
            torch.testing.assert_close(loaded(x), act(x), rtol=1e-5, atol=1e-6)
