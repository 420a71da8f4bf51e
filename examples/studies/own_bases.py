"""Base functions of other papers, in addition to the catalogue."""

from hullo import add_base

OMEGA = 30.0
add_base("cosine", "cos(x)")  # beside the sine: a learned phase
add_base("finer", f"sin(x * (1 + abs(x) / {OMEGA}))")  # FINER: sin(omega (1 + |z|) z) for x = omega z
add_base("leaky_relu2", "square(where(x > 0, x, slope * x))", parameters={"slope": 0.5})  # leaky ReLU, squared
