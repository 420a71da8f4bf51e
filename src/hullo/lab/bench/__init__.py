"""Benchmark of activations: time, memory traffic and memory held for the backward pass.

    cases     activations and inputs      clocks    time and memory on a CPU and on a GPU
    measure   the measurement             results   rows, tables and a chart

Every figure is read against two others of the same run: GELU's time, and the bandwidth floor, the time that the fewest
bytes that must move (forward: x read, y written; backward: x and dy read, dx written) take at the speed of a copy.
"""
