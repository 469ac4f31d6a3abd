"""How far an operator may be from its float64 reference: the worst row's relative L2 error, by dtype.

One rounding to bfloat16 costs a row about 1.7e-3 and two cost about 2.4e-3, with spread above that in short rows; an operator
of a few roundings gets what its roundings cost and room for the worst of many rows. ``store_kv`` and ``embedding`` copy, so
they are exact. In float32 attention the error follows the size of the scores. For ``sample`` the error is the relative loss of
score against the best id that remains; greedy rows are exact.
"""

import torch

BOUNDS: dict[str, tuple[float, float]] = {
    # operator: (float32, bfloat16)
    "embedding": (0.0, 0.0),
    "linear": (2e-6, 3.5e-3),
    "add": (1e-6, 3.5e-3),
    "silu_and_mul": (1e-6, 3.5e-3),
    "sigmoid_mul": (1e-6, 3.5e-3),
    "rms_norm": (1e-6, 5e-3),
    "add_rms_norm": (1e-6, 5e-3),
    "gated_rms_norm": (1e-6, 8e-3),
    "rotary_embedding": (1e-6, 3.5e-3),
    "store_kv": (0.0, 0.0),
    "prefill_attention": (1e-5, 6e-3),
    "decode_attention": (1e-5, 6e-3),
    "sample": (1e-5, 1e-5),
    "qk_norm_rope_store": (2e-6, 8e-3),
    "norm_linear": (3e-6, 8e-3),
    "gate_up_silu": (3e-6, 8e-3),
    "linear_add": (2e-6, 5e-3),
    "lm_head_sample": (1e-5, 1e-2),
    "all_reduce_add_rms_norm": (1e-6, 5e-3),
}


def bound_of(op: str, dtype: torch.dtype) -> float:
    """The largest error that passes."""
    return BOUNDS[op][0 if dtype == torch.float32 else 1]
