import torch
from hypothesis import given
from hypothesis import strategies as st

from hullo.population.rng import Purpose, draw, draw_below, draw_short, open_streams, permute

WORD = (1 << 64) - 1
words = st.integers(-(2**63), 2**63 - 1)


def finalise(z):
    """Compute SplitMix64's finaliser in Python's unbounded integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def unsigned(tensor):
    return [value & WORD for value in tensor.flatten().tolist()]


def chi_squared(counts):
    counts = counts.double()
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())


def test_stream_is_splitmix64():
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert unsigned(draw(torch.tensor([1234567]), torch.arange(5))) == published


@given(words, words)
def test_draws_are_exact_for_all_keys_and_positions(key, position):
    drawn = draw(torch.tensor([key]), torch.tensor([position]))
    assert unsigned(drawn) == [finalise((key + (position + 1) * 0x9E3779B97F4A7C15) & WORD)]


@given(words, st.sampled_from(Purpose), st.integers(0, 2**40))
def test_keys_are_exact_for_all_seeds(seed, purpose, index):
    key = finalise((finalise((finalise(seed & WORD) + purpose) & WORD) + index) & WORD)
    assert unsigned(open_streams(torch.tensor([seed]), purpose, index)) == [key]
    assert unsigned(open_streams(torch.tensor([seed]), purpose, torch.tensor(index))) == [key]


def test_streams_of_different_keys_differ():
    keys = [open_streams(torch.arange(-50, 50), purpose, index) for purpose in Purpose for index in range(100)]
    assert torch.cat(keys).unique().numel() == 100 * len(Purpose) * 100


@given(words, st.integers(1, 50), st.integers(0, 7))
def test_stream_is_the_same_alone_and_in_a_batch(seed, size, place):
    seeds = torch.arange(8) * 77
    seeds[place] = seed
    among = open_streams(seeds, Purpose.ORDER, 3)
    alone = open_streams(torch.tensor([seed]), Purpose.ORDER, 3)
    assert torch.equal(permute(among, size)[place], permute(alone, size)[0])
    assert torch.equal(draw(among, torch.arange(size))[place], draw(alone, torch.arange(size))[0])


def test_draw_below_is_uniform_and_bounded():
    for limit in (1, 2, 7, 10):
        numbers = draw_below(limit, torch.tensor([3, 4]), torch.arange(100_000))
        assert numbers.min() == 0
        assert numbers.max() == limit - 1
        for stream in numbers:
            assert chi_squared(stream.bincount()) < limit + 5 * (2 * limit) ** 0.5


@given(words, st.integers(0, 300))
def test_permutation_contains_each_number_once(key, size):
    assert permute(torch.tensor([key]), size).sort().values.tolist() == [list(range(size))]


def test_all_permutations_are_equally_likely():
    orders = permute(open_streams(torch.arange(24_000), Purpose.ORDER, 0), 4)
    counts = (orders @ torch.tensor([64, 16, 4, 1])).unique(return_counts=True)[1]
    assert counts.numel() == 24
    assert chi_squared(counts) < 23 + 5 * 46**0.5


def test_permutations_differ_between_seeds_and_epochs():
    orders = torch.stack([permute(open_streams(torch.arange(20), Purpose.ORDER, epoch), 50) for epoch in range(20)])
    assert orders.flatten(0, 1).unique(dim=0).shape[0] == 400


def test_short_numbers_of_a_part_of_a_batch_are_those_of_the_whole() -> None:
    keys = torch.tensor([1234567, 89])
    whole = draw_short(keys, (7, 5))
    for first in range(7):
        assert draw_short(keys, (7 - first, 5), first).equal(whole[:, first:])
