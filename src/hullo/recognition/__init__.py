"""Recognize activations: which known function is this module, this call or this function?

:mod:`~hullo.recognition.table` reads PyTorch's and transformers' own activations by type and settings,
:mod:`~hullo.recognition.probe` calls anything else at test points, and :mod:`~hullo.recognition.known` compares
combinations of bases.
"""
