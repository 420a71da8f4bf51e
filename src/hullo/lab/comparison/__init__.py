"""Which activation for my network, and how sure is that?

Candidates compete on validation data by successive halving (:mod:`~hullo.lab.comparison.decision`); the winner of that,
the challenger, is confirmed against the original on fresh seeds and the test data, with one paired test.
:mod:`~hullo.lab.comparison.engine` asks for what the decision wants, :mod:`~hullo.lab.comparison.work` trains it in
populations, here or on a cluster, and the engine records every run.
"""

from hullo.lab.comparison.compare import compare
from hullo.lab.comparison.result import Result

__all__ = ["Result", "compare"]
