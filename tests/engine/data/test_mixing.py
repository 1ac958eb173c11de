import numpy as np

from engine.data.mixing import mix, mix_all


def splitmix64(seed, count):
    """The published generator, in plain integers."""
    mask = (1 << 64) - 1
    found = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        found.append(z ^ (z >> 31))
    return found


def test_mix_is_the_published_splitmix64():
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    states = np.array([(1234567 + i * golden) & mask for i in range(5)], dtype=np.uint64)
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423,
                 4593380528125082431, 16408922859458223821]  # fmt: skip
    assert mix(states).tolist() == published == splitmix64(1234567, 5)


def test_one_input_bit_moves_half_of_the_output_bits():
    base = mix(np.arange(500, dtype=np.uint64))
    for bit in (0, 1, 17, 40, 63):
        changed = mix(np.arange(500, dtype=np.uint64) ^ np.uint64(1 << bit))
        moved = sum(int(x).bit_count() for x in (base ^ changed).tolist()) / 500
        assert 30 < moved < 34


def test_parts_do_not_commute_and_broadcast():
    assert mix_all(1, 2)[0] != mix_all(2, 1)[0]
    assert mix_all(-1)[0] == mix_all((1 << 64) - 1)[0]
    rows = np.arange(3, dtype=np.uint64)[:, None]
    columns = np.arange(4, dtype=np.uint64)
    both = mix_all(7, rows, columns)
    assert both.shape == (3, 4)
    assert both[2, 3] == mix_all(7, 2, 3)[0]
    assert len(set(both.ravel().tolist())) == 12
