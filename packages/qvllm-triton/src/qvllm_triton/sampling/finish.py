"""The second launch: the best of a row's parts, or what its filters make of it."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

from qvllm_triton.sampling.filter import filtered_id
from qvllm_triton.sampling.keys import NAN_ID, NAN_KEY, NOTHING, id_of
from qvllm_triton.sampling.settings import PER_ROW, filters_of, noise_key

# One program per row, which searches the maxima of the groups, and reads FINISH_TILE ids at a time. FINISH_REGISTERS lets two
# such programs share a multiprocessor, so that 256 rows run side by side; left alone, the compiler may aim for three and spill.
FINISH_TILE = 1024
FINISH_WARPS = 8
FINISH_REGISTERS = 128


@triton.jit(do_not_specialize=["present", "parts"], do_not_specialize_on_alignment=PER_ROW)
def finish_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seeds_ptr,
    steps_ptr,
    best_ptr,
    maxima_ptr,
    sums_ptr,
    hits_ptr,
    out_ptr,
    row_stride,
    present,
    vocab,
    groups,
    parts,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    best = tl.max(tl.load(best_ptr + row * parts + part, mask=part < parts, other=NOTHING))
    token = id_of(best)
    broken = (best >> 32) == NAN_KEY
    if maxima_ptr is not None:
        temperature = tl.load(temperature_ptr + row)
        limit, top_p, min_p, filtered = filters_of(row, temperature, top_k_ptr, top_p_ptr, min_p_ptr, present, vocab)
        if filtered & ~broken:
            step, key_low, key_high = noise_key(row, seeds_ptr, steps_ptr)
            token = filtered_id(
                logits_ptr + row * row_stride,
                maxima_ptr + row * groups,
                sums_ptr + row * groups,
                hits_ptr + row * groups,
                vocab,
                groups,
                token,
                temperature,
                limit,
                top_p,
                min_p,
                step,
                key_low,
                key_high,
                GROUP,
                GROUPS,
                TILE,
            )
    tl.store(out_ptr + row, tl.where(broken, NAN_ID, token))
