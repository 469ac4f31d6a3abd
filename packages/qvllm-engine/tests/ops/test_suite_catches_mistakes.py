"""The suite can fail: each mistake below, put into the torch backend, is caught by the cases of its operator."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from qvllm_engine.backends import composites, torch_backend
from qvllm_engine.backends.torch_backend import attention
from qvllm_engine.testing import check_backend, check_function, conformance_cases

ops = torch_backend
gather, attend = attention._gather, attention._attend


def caught(op: str, function: Callable[..., Any], dtype: torch.dtype = torch.float32) -> list[str]:
    """The problems that the suite finds; at least one."""
    report = check_function(op, function, conformance_cases(dtype=dtype, ops=[op]))
    assert report.status == "FAILED", f"nothing was noticed in {report.cases} cases, worst error {report.worst:.1e}"
    # A mistake that raises would be caught whatever the inputs are, so it would prove nothing about them.
    assert not any("raised" in problem for problem in report.problems), report.problems
    return report.problems


# Embedding, linear, elementwise -----------------------------------------------------------------------------------------


def clamp_instead_of_zero(ids, weight, first_id=0):
    return weight[(ids - first_id).clamp(0, len(weight) - 1)]


def clear_by_product(ids, weight, first_id=0):
    inside = (ids >= first_id) & (ids < first_id + len(weight))
    return clamp_instead_of_zero(ids, weight, first_id) * inside[:, None]


def include_one_past_the_shard(ids, weight, first_id=0):
    return ops.embedding(torch.where(ids == first_id + len(weight), ids - 1, ids), weight, first_id)


def add_in_place(x, y):
    return x.add_(y)


def overflowing_silu(x):
    gate, up = x.chunk(2, dim=-1)
    return gate * gate.exp() / (1 + gate.exp()) * up


def accumulate_in_bfloat16(x, weight, bias=None):
    total = torch.zeros(*x.shape[:-1], len(weight), dtype=x.dtype)
    for part, rows in zip(x.split(32, -1), weight.split(32, -1), strict=True):
        total += F.linear(part, rows)
    return total if bias is None else total + bias


DENSE = {
    "clamps ids to the shard": ("embedding", clamp_instead_of_zero),
    "clears by a product with zero": ("embedding", clear_by_product),
    "shard one row too long": ("embedding", include_one_past_the_shard),
    "ignores first_id": ("embedding", lambda ids, weight, first_id=0: ops.embedding(ids, weight)),
    "ignores the bias": ("linear", lambda x, weight, bias=None: ops.linear(x, weight)),
    "loses strides": (
        "linear",
        lambda x, weight, bias=None: ops.linear(x.as_strided(x.shape, torch.empty(x.shape).stride()), weight, bias),
    ),
    "adds in place": ("add", add_in_place),
    "returns float64": ("add", lambda x, y: x.double() + y),
    "returns a view that is not contiguous": ("add", lambda x, y: torch.empty(*x.shape, 2)[..., 0].copy_(ops.add(x, y))),
    "swaps gate and up": ("silu_and_mul", lambda x: ops.silu_and_mul(torch.cat(x.chunk(2, -1)[::-1], -1))),
    "overflows": ("silu_and_mul", overflowing_silu),
    "swaps x and gate": ("sigmoid_mul", lambda x, gate: ops.sigmoid_mul(gate, x)),
}


@pytest.mark.parametrize(("op", "function"), DENSE.values(), ids=DENSE)
def test_dense(op: str, function: Callable[..., Any]) -> None:
    caught(op, function)


def test_sums_below_float32() -> None:
    problems = caught("linear", accumulate_in_bfloat16, torch.bfloat16)
    assert any(problem.startswith("long positive sums") for problem in problems)


# Norms and rotary -------------------------------------------------------------------------------------------------------


def layer_norm(x, weight, eps, offset=0.0):
    return ops.rms_norm(x - x.mean(-1, keepdim=True), weight, eps, offset)


def eps_outside_the_root(x, weight, eps, offset=0.0):
    return x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * (offset + weight)


def normalises_x_alone(x, residual, weight, eps, offset=0.0):
    return ops.rms_norm(x, weight, eps, offset), x + residual


def returns_the_old_residual(x, residual, weight, eps, offset=0.0):
    return ops.add_rms_norm(x, residual, weight, eps, offset)[0], residual.clone()


def updates_the_residual(x, residual, weight, eps, offset=0.0):
    residual += x
    return ops.rms_norm(residual, weight, eps, offset), residual.clone()


def interleaved_pairs(q, k, cos, sin):
    def rotate(x):
        y = x.clone()
        a, b = x[..., 0 : 2 * cos.shape[1] : 2], x[..., 1 : 2 * cos.shape[1] : 2]
        y[..., 0 : 2 * cos.shape[1] : 2] = a * cos[:, None] - b * sin[:, None]
        y[..., 1 : 2 * cos.shape[1] : 2] = b * cos[:, None] + a * sin[:, None]
        return y

    return rotate(q), rotate(k)


def clears_the_rest(q, k, cos, sin):
    return tuple(
        F.pad(x[..., : 2 * cos.shape[1]], (0, x.shape[-1] - 2 * cos.shape[1])) for x in ops.rotary_embedding(q, k, cos, sin)
    )


def same_angle_for_all(q, k, cos, sin):
    return ops.rotary_embedding(q, k, cos[:1].expand_as(cos), sin[:1].expand_as(sin))


ROWS = {
    "ignores eps": ("rms_norm", lambda x, weight, eps, offset=0.0: ops.rms_norm(x, weight, 0.0, offset)),
    "eps outside the root": ("rms_norm", eps_outside_the_root),
    "subtracts the mean": ("rms_norm", layer_norm),
    "ignores weight_offset": ("rms_norm", lambda x, weight, eps, offset=0.0: ops.rms_norm(x, weight, eps)),
    "always adds 1": ("rms_norm", lambda x, weight, eps, offset=0.0: ops.rms_norm(x, weight, eps, 1.0)),
    "normalises x alone": ("add_rms_norm", normalises_x_alone),
    "returns the old residual": ("add_rms_norm", returns_the_old_residual),
    "updates the residual in place": ("add_rms_norm", updates_the_residual),
    "returns one tensor": ("add_rms_norm", lambda *args: ops.add_rms_norm(*args)[0]),
    "gates before the norm": ("gated_rms_norm", lambda x, gate, weight, eps: ops.rms_norm(x * F.silu(gate), weight, eps)),
    "sigmoid for silu": ("gated_rms_norm", lambda x, gate, w, eps: ops.rms_norm(x, w, eps) * torch.sigmoid(gate)),
    "interleaved pairs": ("rotary_embedding", interleaved_pairs),
    "turns the other way": ("rotary_embedding", lambda q, k, cos, sin: ops.rotary_embedding(q, k, cos, -sin)),
    "leaves k": ("rotary_embedding", lambda q, k, cos, sin: (ops.rotary_embedding(q, k, cos, sin)[0], k.contiguous())),
    "clears what is not rotated": ("rotary_embedding", clears_the_rest),
    "one angle for all tokens": ("rotary_embedding", same_angle_for_all),
}


@pytest.mark.parametrize(("op", "function"), ROWS.values(), ids=ROWS)
def test_rows(op: str, function: Callable[..., Any]) -> None:
    caught(op, function)


# Cache ------------------------------------------------------------------------------------------------------------------


def write_slots(k, v, k_cache, v_cache, slots):
    block, offset = slots // k_cache.shape[2], slots % k_cache.shape[2]
    k_cache[block, :, offset], v_cache[block, :, offset] = k, v


def redirect_to_slot_zero(k, v, k_cache, v_cache, slots):
    """Padding rows write back what slot 0 held, which undoes a live write to it."""
    live = (slots >= 0)[:, None, None]
    k, v = torch.where(live, k, k_cache[0, :, 0]), torch.where(live, v, v_cache[0, :, 0])
    write_slots(k, v, k_cache, v_cache, slots.clamp(min=0))


def only_the_first_head(k, v, k_cache, v_cache, slots):
    ops.store_kv(k[:, :1], v[:, :1], k_cache[:, :1], v_cache[:, :1], slots)


def blocks_of_16(k, v, k_cache, v_cache, slots):
    if len(slots):
        live = slots[slots >= 0]
        k_cache[live // 16 % len(k_cache), :, live % 16] = k[slots >= 0]
        v_cache[live // 16 % len(k_cache), :, live % 16] = v[slots >= 0]


STORE = {
    "-1 is the last slot": write_slots,
    "-1 is slot 0": lambda k, v, kc, vc, slots: write_slots(k, v, kc, vc, slots.clamp(min=0)),
    "-1 undoes slot 0": redirect_to_slot_zero,
    "swaps k and v": lambda k, v, kc, vc, slots: ops.store_kv(v, k, kc, vc, slots),
    "one slot late": lambda k, v, kc, vc, slots: ops.store_kv(k, v, kc, vc, torch.where(slots < 0, slots, slots ^ 1)),
    "one head": only_the_first_head,
    "block size written in": blocks_of_16,
    "stores nothing": lambda *args: None,
}


@pytest.mark.parametrize("function", STORE.values(), ids=STORE)
def test_store_kv(function: Callable[..., Any]) -> None:
    caught("store_kv", function)


# Attention --------------------------------------------------------------------------------------------------------------


def heads_modulo(q, k, v, last_key, scale):
    """Query head h reads key head h % kv_heads instead of h // group."""
    order = torch.arange(q.shape[2]).view(k.shape[1], -1).T.flatten()
    return attend(q[:, :, order], k, v, last_key, scale)[:, :, order.argsort()]


def no_maximum(q, k, v, last_key, scale):
    group = q.shape[2] // k.shape[1]
    scores = torch.einsum("sqhd,shkd->shqk", q, k.repeat_interleave(group, 1)) * scale
    weights = scores.exp().masked_fill(torch.arange(k.shape[2]) > last_key[:, None, :, None], 0)
    out = torch.einsum("shqk,shkd->sqhd", weights / weights.sum(-1, keepdim=True), v.repeat_interleave(group, 1))
    return out.contiguous()


def mask_by_adding(q, k, v, last_key, scale):
    """-10 instead of -inf for keys that must not be seen."""
    group = q.shape[2] // k.shape[1]
    scores = torch.einsum("sqhd,shkd->shqk", q, k.repeat_interleave(group, 1)) * scale
    scores -= 10.0 * (torch.arange(k.shape[2]) > last_key[:, None, :, None])
    out = torch.einsum("shqk,shkd->sqhd", scores.softmax(-1), v.repeat_interleave(group, 1)).contiguous()
    return out.masked_fill_((last_key < 0)[:, :, None, None], 0)


INSIDE = {
    "sees the next key": ("_attend", lambda q, k, v, last, scale: attend(q, k, v, last + 1, scale)),
    "does not see itself": ("_attend", lambda q, k, v, last, scale: attend(q, k, v, last - 1, scale)),
    "does not see the first key": (
        "_attend",
        lambda q, k, v, last, scale: attend(q, k[:, :, 1:], v[:, :, 1:], last - 1, scale),
    ),
    "no scale": ("_attend", lambda q, k, v, last, scale: attend(q, k, v, last, 1.0)),
    "the usual scale": ("_attend", lambda q, k, v, last, scale: attend(q, k, v, last, q.shape[-1] ** -0.5)),
    "softmax without its maximum": ("_attend", no_maximum),
    "mask of -10": ("_attend", mask_by_adding),
    "key heads modulo": ("_attend", heads_modulo),
    "swaps k and v": ("_attend", lambda q, k, v, last, scale: attend(q, v, k, last, scale)),
    "unused tail not cleared": ("_gather", lambda k, v, tables, lens: gather(k, v, tables, torch.full_like(lens, 1_000_000))),
    "block table ignored": (
        "_gather",
        lambda k, v, tables, lens: gather(k, v, torch.arange(tables.shape[1]).int().expand_as(tables), lens),
    ),
    "last block missing": ("_gather", lambda k, v, tables, lens: gather(k, v, tables, (lens - 1) // k.shape[2] * k.shape[2])),
}


@pytest.mark.parametrize("op", ["prefill_attention", "decode_attention"])
@pytest.mark.parametrize(("name", "replacement"), INSIDE.values(), ids=INSIDE)
def test_attention(monkeypatch: pytest.MonkeyPatch, op: str, name: str, replacement: Callable[..., Any]) -> None:
    monkeypatch.setattr(attention, name, replacement)
    caught(op, getattr(ops, op))


def chunk_starts_the_prompt(q, k, v, tables, starts, kv_lens, longest, scale):
    """Takes the chunk's own length for kv_len."""
    return ops.prefill_attention(q, k, v, tables, starts, starts[1:] - starts[:-1], longest, scale)


def sequences_of_equal_length(q, k, v, tables, starts, kv_lens, longest, scale):
    even = (torch.arange(len(starts)) * len(q) // max(len(starts) - 1, 1)).int()
    return ops.prefill_attention(q, k, v, tables, even, kv_lens, longest, scale)


def zeros_left_out(q, k, v, tables, kv_lens, scale, workspace=None):
    return ops.decode_attention(q, k, v, tables, kv_lens.clamp(min=1), scale)


def one_table_for_all(q, k, v, tables, *rest):
    operator = ops.prefill_attention if len(rest) > 3 else ops.decode_attention
    return operator(q, k, v, tables[:1].expand_as(tables), *rest)


AROUND = {
    "one block table for all in prefill": ("prefill_attention", one_table_for_all),
    "one block table for all in decode": ("decode_attention", one_table_for_all),
    "kv_len of the chunk": ("prefill_attention", chunk_starts_the_prompt),
    "equal lengths": ("prefill_attention", sequences_of_equal_length),
    "padding rows not zero": ("decode_attention", zeros_left_out),
}


@pytest.mark.parametrize(("op", "function"), AROUND.values(), ids=AROUND)
def test_lengths(op: str, function: Callable[..., Any]) -> None:
    caught(op, function)


# Fused ------------------------------------------------------------------------------------------------------------------


def composite_with(**replaced: Callable[..., Any]) -> SimpleNamespace:
    return SimpleNamespace(**{name: replaced.get(name, getattr(ops, name)) for name in ops.__all__ if name[0] != "O"})


def no_norm_of_k(*args):
    return composites.qk_norm_rope_store(composite_with(), *args[:2], torch.ones_like(args[2]), *args[3:])


def v_before_k(qkv, *args):
    q, k, v = qkv.unflatten(-1, (-1, args[0].shape[0])).split([args[-2], args[-1], args[-1]], dim=1)
    return composites.qk_norm_rope_store(composite_with(), torch.cat((q, v, k), dim=1).flatten(1), *args)


FUSED = {
    "k_weight ignored": ("qk_norm_rope_store", no_norm_of_k),
    "reads v before k": ("qk_norm_rope_store", v_before_k),
    "k stored without rotation": (
        "qk_norm_rope_store",
        lambda *a: composites.qk_norm_rope_store(
            composite_with(rotary_embedding=lambda q, k, cos, sin: (ops.rotary_embedding(q, k, cos, sin)[0], k)), *a
        ),
    ),
    "returns x for the sum": (
        "norm_linear",
        lambda x, *a: (composites.norm_linear(composite_with(), x, *a)[0], x.contiguous()),
    ),
    "residual None is x": (
        "norm_linear",
        lambda x, residual, *a: composites.norm_linear(composite_with(), x, x if residual is None else residual, *a),
    ),
    "up rows first": ("gate_up_silu", lambda x, w: composites.gate_up_silu(composite_with(), x, w.roll(len(w) // 2, 0))),
    "no residual": ("linear_add", lambda x, weight, residual: ops.linear(x, weight)),
    "adds into the residual": ("linear_add", lambda x, weight, residual: residual.add_(ops.linear(x, weight)).clone()),
    "ignores the temperature": (
        "lm_head_sample",
        lambda x, w, t, *a: composites.lm_head_sample(composite_with(), x, w, None, *a),
    ),
    "ignores the step": (
        "lm_head_sample",
        lambda x, w, t, seeds, steps: composites.lm_head_sample(composite_with(), x, w, t, seeds, steps * 0),
    ),
}


@pytest.mark.parametrize(("op", "function"), FUSED.values(), ids=FUSED)
def test_fused(op: str, function: Callable[..., Any]) -> None:
    caught(op, function)


def test_a_native_fused_operator_is_checked_beside_the_composite() -> None:
    module = composite_with()
    module.linear_add = lambda x, weight, residual: ops.linear(x, weight)
    reports = check_backend(module, torch.device("cpu"), torch.float32, ops=["linear_add"])
    assert {report.op: report.status for report in reports} == {"linear_add": "FAILED", "linear_add (composite)": "ok"}


def test_an_operator_that_raises_fails() -> None:
    report = check_function("add", lambda x, y: ops.add(x, y) if len(x) else 1 / 0, conformance_cases(ops=["add"]))
    assert report.status == "FAILED"
    assert report.problems == ["no row: raised ZeroDivisionError: division by zero"]


def test_missing_operators_are_reported() -> None:
    module = composite_with()
    del module.linear
    reports = {
        report.op: report.status
        for report in check_backend(module, torch.device("cpu"), torch.float32, ops=["linear", "linear_add"])
    }
    assert reports == {"linear": "missing", "linear_add (composite)": "missing"}
