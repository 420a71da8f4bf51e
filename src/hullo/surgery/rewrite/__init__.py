"""Read forward methods without running them, and rewrite the calls in them.

:mod:`~hullo.surgery.rewrite.source` parses functions, :mod:`~hullo.surgery.rewrite.values` evaluates expressions
statically, :mod:`~hullo.surgery.rewrite.control_flow` follows branches and loops, :mod:`~hullo.surgery.rewrite.reader`
finds calls of activations, :mod:`~hullo.surgery.rewrite.reach` finds other uses of modules, and
:mod:`~hullo.surgery.rewrite.write` compiles changed methods.
"""
