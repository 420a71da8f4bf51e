"""Read the code of forwards, and write it again with other calls in it.

:mod:`~hullo.surgery.rewrite.source` parses functions, :mod:`~hullo.surgery.rewrite.values` evaluates expressions
without running the code, :mod:`~hullo.surgery.rewrite.branches` tells which branches exclude each other,
:mod:`~hullo.surgery.rewrite.reader` finds the activations that code calls, :mod:`~hullo.surgery.rewrite.reach` finds
what else code does with modules, and :mod:`~hullo.surgery.rewrite.write` writes methods anew.
"""
