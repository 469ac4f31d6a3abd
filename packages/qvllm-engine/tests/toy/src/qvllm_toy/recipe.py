"""The numbers that the toy model and its oracle share. Everything is an integer small enough to be exact in float32."""

VOCAB = 96
EOS = 1  # ends a generation
FAIL = 2  # makes the step that reads it raise RuntimeError; never generated
INTERRUPT = 3  # makes the step that reads it raise KeyboardInterrupt; never generated
ORDINARY = range(4, VOCAB)  # ids for prompts

PRIME = 2**31 - 1
FEATURES = 8  # hidden size
KV_HEADS = (1, 2)  # of the two layers
HEAD_DIMS = (4, 8)
SCALE = 64  # stored values are read back as round(value * SCALE), so that random weights work too
LOGIT_SCALE = 1 / 16

TABLE = [(37 * i + 11) % VOCAB for i in range(VOCAB)]
HEAD = [
    [(31 * v * v + 17 * v * (d + 1) + 7 * d * d + 5) % 97 * (11 * d + 3) % 17 - 8 for d in range(FEATURES)]
    for v in range(VOCAB)
]


def mix(layer, head, key, value, index):  # type: ignore[no-untyped-def]
    """Scramble what one head read at one index; takes ints or int64 tensors, gives 0 to PRIME - 1."""
    x = (key * 1_000_003 + value * 7_919 + (2 * layer + head + 1) * 104_729 + index * 15_485_863) % PRIME
    return (x * x + 12_345) % PRIME * 48_271 % PRIME


def context(total):  # type: ignore[no-untyped-def]
    """What the first layer hands to the second: a number below 97 that depends on every token so far."""
    return total % PRIME * 16_807 % PRIME % 97


def feature(first, second, position, d):  # type: ignore[no-untyped-def]
    """One element of the hidden state, -8 to 8, from both layers' sums."""
    z = (first % PRIME * 69_621 + second % PRIME + position * 31) % PRIME
    z = z * ((d + 1) ** 2 * 40_692 % PRIME) % PRIME
    return z * z % PRIME % 17 - 8
