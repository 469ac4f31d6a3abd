"""Fused operators built from required ones, for backends that do not offer them.

Each function has the name and arguments of a member of ``FusedOps`` after ``ops``, an object with the required operators as
attributes. ``COMPOSITES`` names the required operators that each one calls.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from qvllm_engine.backends.interface import RequiredOps
from qvllm_engine.distributed.groups import Group


def qk_norm_rope_store(
    ops: RequiredOps,
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    weight_offset: float,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    num_q_heads: int,
    num_kv_heads: int,
) -> Tensor:
    """Per-head norms of q and k, rotary embedding, and store_kv, from one projection; see ``FusedOps``."""
    heads = qkv.unflatten(-1, (-1, q_weight.shape[0]))
    q, k, v = heads.split([num_q_heads, num_kv_heads, num_kv_heads], dim=1)
    q = ops.rms_norm(q, q_weight, eps, weight_offset)
    k = ops.rms_norm(k, k_weight, eps, weight_offset)
    q, k = ops.rotary_embedding(q, k, cos, sin)
    ops.store_kv(k, v, k_cache, v_cache, slot_mapping)
    return q


def norm_linear(
    ops: RequiredOps,
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    weight_offset: float,
    weight: Tensor,
) -> tuple[Tensor, Tensor]:
    """``(linear(rms_norm(x + residual), weight), x + residual)``; see ``FusedOps``."""
    if residual is None:
        return ops.linear(ops.rms_norm(x, norm_weight, eps, weight_offset), weight), x
    normed, residual = ops.add_rms_norm(x, residual, norm_weight, eps, weight_offset)
    return ops.linear(normed, weight), residual


def gate_up_silu(ops: RequiredOps, x: Tensor, weight: Tensor) -> Tensor:
    """``silu_and_mul(linear(x, weight))``; see ``FusedOps``."""
    return ops.silu_and_mul(ops.linear(x, weight))


def linear_add(ops: RequiredOps, x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """``linear(x, weight) + residual``; see ``FusedOps``."""
    return ops.add(ops.linear(x, weight), residual)


def lm_head_sample(
    ops: RequiredOps, x: Tensor, weight: Tensor, temperature: Tensor | None, seeds: Tensor, steps: Tensor
) -> Tensor:
    """``sample`` of ``linear(x, weight)`` by temperature alone; see ``FusedOps``."""
    return ops.sample(ops.linear(x, weight).float(), temperature, None, None, None, seeds, steps)


def all_reduce_add_rms_norm(
    ops: RequiredOps, x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float, group: Group
) -> tuple[Tensor, Tensor]:
    """``add_rms_norm`` of x summed over the ranks; see ``FusedOps``."""
    return ops.add_rms_norm(group.all_reduce(x), residual, weight, eps, weight_offset)


COMPOSITES: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "qk_norm_rope_store": (qk_norm_rope_store, ("rms_norm", "rotary_embedding", "store_kv")),
    "norm_linear": (norm_linear, ("rms_norm", "add_rms_norm", "linear")),
    "gate_up_silu": (gate_up_silu, ("linear", "silu_and_mul")),
    "linear_add": (linear_add, ("linear", "add")),
    "lm_head_sample": (lm_head_sample, ("linear", "sample")),
    "all_reduce_add_rms_norm": (all_reduce_add_rms_norm, ("add_rms_norm",)),
}
