"""Specs and records of runs; nothing here imports a network or a trainer."""

from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.records import Record, Records
from hullo.lab.spec.run_spec import Spec

__all__ = ["ActivationSpec", "Environment", "Record", "Records", "Spec"]
