"""Trace members of a population by torch.export into one graph."""
