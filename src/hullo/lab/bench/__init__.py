"""Benchmark of activations: time, memory traffic and memory held for the backward pass.

    contenders   what is measured          clocks    how time is taken on a CPU and on a GPU
    cases        on what                   measure   the measuring itself
    rows         what is kept of it        tables, chart  how that is shown
    session      one run, from words to files

Every figure is read against two others of the same run: GELU's time, and the bandwidth floor, the time that the fewest
bytes that must move (forward: x read, y written; backward: x and dy read, dx written) take at the speed of a copy.
"""
