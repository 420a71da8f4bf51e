"""Train many networks of one architecture as one: plain modules in, plain modules out."""

from hullo.population.check import ContractError
from hullo.population.graphs import capture
from hullo.population.images import AugmentedImages
from hullo.population.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from hullo.population.population import Population
from hullo.population.trace.export import LoweringError

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "AugmentedImages",
    "ContractError",
    "LoweringError",
    "Optimizer",
    "Population",
    "RMSprop",
    "capture",
]
