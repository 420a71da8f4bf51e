"""Does a learned activation help a physics-informed network? The convection equation, or Allen and Cahn's.

    python examples/studies/physics.py convection --beta 30 --seeds 5 --output runs/convection.jsonl

An MLP of five layers of 64, Adam with warm-up and a cosine, gradients clipped, as in the study of AdaAF, whose
activations are the convex hulls of five; --beta 64 --steps 100000 are its published problem and number of steps, here
in float32 and with points that are drawn anew in every step. The training loss, which needs no solution, chooses
learning rates; the test score is the relative L2 error on a grid, from the exact solution or one by a spectral method.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from study import Candidate, Make, Run, Scores, Train, at_rates, fixed, main, populate, results, settings
from torch import Tensor, nn

from hullo import AffineHull, ConvexHull
from hullo.population import Adam, capture
from hullo.population.schedules import cosine, warm_up

RATES = (5e-4, 2e-3, 8e-3)


def five(**options: Any) -> ConvexHull:
    return ConvexHull("sin", "tanh", "gelu", "silu", "softplus", strict=False, **options)


CANDIDATES = {
    **fixed("tanh", "gelu", "silu", "sin"),
    "tanh, learned slope": Candidate(lambda width: AffineHull("tanh", inner_scale="hull", init="tanh")),
    "affine from tanh": Candidate(lambda width: AffineHull("identity", "tanh", "sin", init="tanh")),
    "convex of five": Candidate(lambda width: five()),
    **at_rates("convex of five, learned slopes", lambda width: five(inner_scale="base"), 10),
    **settings("tanh", -1, other="sin"),
}


def network(make: Make) -> nn.Module:
    sizes = (2, 64, 64, 64, 64, 64)
    made = nn.Sequential(*(m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), make(b))), nn.Linear(64, 1))
    for layer in made[::2]:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return made


class Convection:
    """u_t + beta u_x = 0 on [0, 1] x [0, 2 pi], u = sin(x) at t = 0, periodic: u = sin(x - beta t)."""

    low, high, order = 0.0, 2 * math.pi, 1

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def residual(self, u: Tensor, t: Tensor, x: Tensor, xx: Tensor | None) -> Tensor:
        return t + self.beta * x

    def initial(self, x: Tensor) -> Tensor:
        return x.sin()

    def solution(self, times: Tensor, places: Tensor) -> Tensor:
        return (places - self.beta * times[:, None]).sin()


class AllenCahn:
    """u_t = 1e-4 u_xx - 5 (u^3 - u) on [0, 1] x [-1, 1], u = x^2 cos(pi x) at t = 0, u and u_x periodic."""

    low, high, order = -1.0, 1.0, 2

    def residual(self, u: Tensor, t: Tensor, x: Tensor, xx: Tensor | None) -> Tensor:
        return t - 1e-4 * xx + 5 * (u**3 - u)

    def initial(self, x: Tensor) -> Tensor:
        return x.square() * (math.pi * x).cos()

    def solution(self, times: Tensor, places: Tensor, steps: int = 4000) -> Tensor:
        """Integrate by a Fourier series in x and an exponential step of second order in t, in float64."""
        waves = 2 * math.pi * torch.fft.fftfreq(len(places), (self.high - self.low) / len(places), dtype=torch.float64)
        decay, dt = torch.exp(-1e-4 * waves.square() / steps), 1 / steps
        u, found, due = self.initial(places.double()), [], times.tolist()
        for step in range(steps + 1):
            if due and step * dt >= due[0] - 1e-9:
                found.append(u)
                due.pop(0)
            half = torch.fft.ifft(torch.fft.fft(u) * decay.sqrt()).real
            square = half.square()
            grown = square / (square + (1 - square) * math.exp(-10 * dt))  # u' = 5 (u - u^3), solved
            u = torch.fft.ifft(torch.fft.fft(half.sign() * grown.sqrt()) * decay.sqrt()).real
        return torch.stack(found)


def train(
    runs: Sequence[Run], problem: Convection | AllenCahn, steps: int, points: int, device: torch.device
) -> list[Scores]:
    """Train runs side by side on the same points; return their errors."""
    start, count, width, edges = time.perf_counter(), len(runs), problem.high - problem.low, max(1, points // 16)
    population, settings = populate(runs, CANDIDATES, network, device)
    warm = max(1, steps // 100)
    schedule = warm_up(warm, then=cosine(max(1, steps - warm)))
    optimizer = Adam(population, schedule=schedule, max_norm=100.0, **settings)
    times = torch.linspace(0, 1, 101, dtype=torch.float64)
    places = problem.low + width * torch.arange(512, dtype=torch.float64) / 512
    exact = problem.solution(times, places).flatten().float().to(device)
    grid = torch.cartesian_prod(times, places).float().to(device)

    def step(drawn: Tensor) -> Tensor:
        """Take a step on points (t, x): inside, at t = 0, and at both ends of x at the same times."""
        optimizer.zero_grad()
        drawn = drawn.expand(count, -1, -1).clone().requires_grad_()
        u, second = population(drawn), None
        (first,) = torch.autograd.grad(u.sum(), drawn, create_graph=True)
        if problem.order == 2:
            second = torch.autograd.grad(first[..., 1].sum(), drawn, create_graph=True)[0][:, :points, 1:]
        residual = problem.residual(u[:, :points], first[:, :points, :1], first[:, :points, 1:], second)
        begin = (u - problem.initial(drawn[..., 1:]))[:, points : points + edges]
        periodic = u if problem.order == 1 else torch.cat([u, first[..., 1:]], 2)
        left, right = periodic[:, points + edges :].chunk(2, 1)
        losses = sum(part.square().sum(2).mean(1) for part in (residual, begin, left - right))
        losses.sum().backward()
        optimizer.step()
        return losses.detach()

    take = capture(step, population, optimizer)
    generator = torch.Generator().manual_seed(0)
    last, total = max(1, steps // 20), torch.zeros(count, device=device)
    for number in range(steps):
        t, x = torch.rand(points + edges, 2, generator=generator).T
        t, ends = torch.cat([t[:points], torch.zeros(edges), t[points:], t[points:]]), torch.tensor([0.0, 1.0])
        x = problem.low + width * torch.cat([x, ends.repeat_interleave(edges)])
        losses = take(torch.stack([t, x], 1).to(device))
        if number >= steps - last:
            total += losses
    with torch.no_grad():
        found = population(grid, in_dims=None).squeeze(-1)
    errors = (found - exact).norm(dim=1) / exact.norm()
    return results(population, torch.stack([total / last, errors], 1), start)


def open_train(given: argparse.Namespace, device: torch.device) -> Train:
    problem = Convection(given.beta) if given.problem == "convection" else AllenCahn()
    return lambda runs: train(runs, problem, given.steps, given.points, device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem", choices=["convection", "allen-cahn"])
    parser.add_argument("--beta", type=float, default=30.0, help="the speed of convection")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--points", type=int, default=6400)
    main(parser, CANDIDATES, RATES, open_train)
