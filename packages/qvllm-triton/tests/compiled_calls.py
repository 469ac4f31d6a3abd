"""Calls that between them compile every kernel at the shapes of models; see test_compiles.py.

``CALLS`` has one function per public operator, which calls it once for every kernel, or variant of a kernel, that a model
needs, with empty tensors of the dtype that it is given. ``compile_all``, in a process that imported offline.py first, prints
a line of JSON per architecture, operator and dtype: the kernels with their registers, spills, shared memory and kinds of
global accesses, or the error.
"""

import json
import re
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import qvllm_triton as ops

ARCHITECTURES = (80, 90, 120)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
CALLS: dict[str, Callable[[torch.dtype], Any]] = {}
TOKENS, EPS = 4, 1e-6
# q heads, kv heads, head_dim, rotary_dim of Qwen3-0.6B and of Qwen3.5-0.8B. In float32 the longer heads are enough: what they
# need of registers and shared memory is more.
QWEN3, QWEN35 = (16, 8, 128, 128), (8, 2, 256, 64)
HEADS = {torch.bfloat16: (QWEN3, QWEN35), torch.float32: (QWEN35,)}


def call(function: Callable[[torch.dtype], Any]) -> Callable[[torch.dtype], Any]:
    """Registers the calls of the operator that ``function`` is named after."""
    CALLS[function.__name__] = function
    return function


def new(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype)


# Elementwise


@call
def embedding(dtype: torch.dtype) -> None:
    ops.embedding(new(TOKENS, dtype=torch.int32), new(1000, 1024, dtype=dtype))


@call
def add(dtype: torch.dtype) -> None:
    x = new(TOKENS, 1024, dtype=dtype)
    ops.add(x, x)


@call
def silu_and_mul(dtype: torch.dtype) -> None:
    ops.silu_and_mul(new(TOKENS, 2 * 3072, dtype=dtype))


@call
def sigmoid_mul(dtype: torch.dtype) -> None:
    x = new(TOKENS, 2048, dtype=dtype)
    ops.sigmoid_mul(x, x)
    heads = new(TOKENS, 8, 512, dtype=dtype)[..., 256:]  # a gate beside the query of each head
    ops.sigmoid_mul(x.view(TOKENS, 8, 256), heads)


# Products with a weight, element by element and on matrix units; more rows are torch's product

ROWS = (1, 16)


@call
def linear(dtype: torch.dtype) -> None:
    for rows in ROWS:
        ops.linear(new(rows, 2048, dtype=dtype), new(1024, 2048, dtype=dtype))


@call
def linear_add(dtype: torch.dtype) -> None:
    for rows in ROWS:
        ops.linear_add(new(rows, 3072, dtype=dtype), new(1024, 3072, dtype=dtype), new(rows, 1024, dtype=dtype))


@call
def gate_up_silu(dtype: torch.dtype) -> None:
    for rows in ROWS:
        ops.gate_up_silu(new(rows, 1024, dtype=dtype), new(2 * 3072, 1024, dtype=dtype))


@call
def norm_linear(dtype: torch.dtype) -> None:
    for rows in ROWS:
        x = new(rows, 1024, dtype=dtype)
        ops.norm_linear(x, x, new(1024, dtype=dtype), EPS, 0.0, new(4096, 1024, dtype=dtype))


# Norms


@call
def rms_norm(dtype: torch.dtype) -> None:
    for dim in (1024, 6144):
        ops.rms_norm(new(TOKENS, dim, dtype=dtype), new(dim, dtype=dtype), EPS)
    ops.rms_norm(new(TOKENS, 32, 128, dtype=dtype)[:, :16], new(128, dtype=dtype), EPS, 1.0)


@call
def add_rms_norm(dtype: torch.dtype) -> None:
    for dim in (1024, 6144):
        x = new(TOKENS, dim, dtype=dtype)
        ops.add_rms_norm(x, x, new(dim, dtype=dtype), EPS)


@call
def gated_rms_norm(dtype: torch.dtype) -> None:
    x = new(TOKENS, 16, 128, dtype=dtype)
    ops.gated_rms_norm(x, new(TOKENS, 64, 128, dtype=dtype)[:, 32:48], new(128, dtype=dtype), EPS)
    ops.gated_rms_norm(x, x, new(128, dtype=torch.float32), EPS)


# From the projection to attention


@call
def rotary_embedding(dtype: torch.dtype) -> None:
    for q_heads, kv_heads, head_dim, rotary_dim in HEADS[dtype]:
        q, k = new(TOKENS, q_heads + kv_heads, head_dim, dtype=dtype).split([q_heads, kv_heads], dim=1)
        table = new(TOKENS, rotary_dim // 2, dtype=torch.float32)
        ops.rotary_embedding(q, k, table, table)


@call
def store_kv(dtype: torch.dtype) -> None:
    for _, kv_heads, head_dim, _ in HEADS[dtype]:
        k, v = new(TOKENS, 2 * kv_heads, head_dim, dtype=dtype).split(kv_heads, dim=1)
        cache = new(2, kv_heads, 64, head_dim, dtype=dtype)
        ops.store_kv(k, v, cache, cache, new(TOKENS, dtype=torch.int64))


@call
def qk_norm_rope_store(dtype: torch.dtype) -> None:
    for q_heads, kv_heads, head_dim, rotary_dim in HEADS[dtype]:
        qkv = new(TOKENS, (q_heads + 2 * kv_heads) * head_dim, dtype=dtype)
        weight, table = new(head_dim, dtype=dtype), new(TOKENS, rotary_dim // 2, dtype=torch.float32)
        cache, slots = new(2, kv_heads, 64, head_dim, dtype=dtype), new(TOKENS, dtype=torch.int64)
        ops.qk_norm_rope_store(qkv, weight, weight, EPS, 0.0, table, table, cache, cache, slots, q_heads, kv_heads)


# Attention


@call
def decode_attention(dtype: torch.dtype) -> None:
    for q_heads, kv_heads, head_dim, _ in HEADS[dtype]:
        q, cache = new(TOKENS, q_heads, head_dim, dtype=dtype), new(2, kv_heads, 64, head_dim, dtype=dtype)
        table, lengths = new(TOKENS, 64, dtype=torch.int32), new(TOKENS, dtype=torch.int32)
        ops.decode_attention(q, cache, cache, table, lengths, head_dim**-0.5)


@call
def prefill_attention(dtype: torch.dtype) -> None:
    for q_heads, kv_heads, head_dim, _ in HEADS[dtype]:
        q, cache = new(500, q_heads, head_dim, dtype=dtype), new(2, kv_heads, 64, head_dim, dtype=dtype)
        table, starts, lengths = (new(*shape, dtype=torch.int32) for shape in ((TOKENS, 64), (TOKENS + 1,), (TOKENS,)))
        ops.prefill_attention(q, cache, cache, table, starts, lengths, 200, head_dim**-0.5)


# Sampling


@call
def sample(dtype: torch.dtype) -> None:
    logits = new(TOKENS, 151_936, dtype=torch.float32)  # whatever the model's dtype
    temperature, top_p, min_p = (new(TOKENS, dtype=torch.float32) for _ in range(3))
    top_k, seeds, steps = (new(TOKENS, dtype=kind) for kind in (torch.int32, torch.int64, torch.int32))
    ops.sample(logits, None, None, None, None, seeds, steps)
    ops.sample(logits, temperature, top_k, top_p, min_p, seeds, steps)


def compile_all() -> None:
    """Print what the compiler made of every operator for every architecture and dtype."""
    import offline
    from triton.runtime import driver

    driver.active.get_current_device = lambda: offline.ARCH  # Triton keeps kernels by device
    for offline.ARCH in ARCHITECTURES:
        for operator in CALLS:
            for dtype in DTYPES:
                print(json.dumps(compile_one(operator, dtype) | {"architecture": offline.ARCH}), flush=True)


def compile_one(operator: str, dtype: str) -> dict[str, Any]:
    import offline

    offline.compiled.clear()
    error = None
    try:
        CALLS[operator](DTYPES[dtype])
    except Exception:
        error = traceback.format_exc()
    kernels = []
    for name, kernel in offline.compiled:
        registers, spilled = offline.registers_and_spills(kernel)
        accesses = sorted(set(re.findall(r"(?:ld|st)\.global\.[\w.]*", kernel.asm["ptx"])))
        usage = {"registers": registers, "spilled": spilled, "shared": kernel.metadata.shared, "accesses": accesses}
        kernels.append({"name": name} | usage)
    return {"operator": operator, "dtype": dtype, "kernels": kernels, "error": error}
