"""Train many networks of one architecture as one: plain modules in, plain modules out."""

from hullo.population.graphs import capture
from hullo.population.images import AugmentedImages
from hullo.population.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from hullo.population.population import Population
from hullo.population.trace.export import LoweringError

__all__ = ["SGD", "Adam", "AdamW", "AugmentedImages", "LoweringError", "Optimizer", "Population", "RMSprop", "capture"]
