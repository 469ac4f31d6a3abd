"""What the conformance suite leaves open about the torch backend."""

import pytest
import torch

from qvllm_engine.backends import interface, torch_backend
from qvllm_engine.backends.torch_backend import attention
from qvllm_engine.testing import check_function, conformance_cases


def test_offers_every_required_operator() -> None:
    required = [name for name in vars(interface.RequiredOps) if not name.startswith("_")]
    assert len(required) == 13
    assert set(required) <= set(torch_backend.__all__)
    assert torch_backend.OPS_API == interface.OPS_API


def test_availability() -> None:
    assert torch_backend.unavailable_reason(torch.device("cpu")) is None
    assert "not on meta" in torch_backend.unavailable_reason(torch.device("meta"))
    missing = torch_backend.unavailable_reason(torch.device("cuda", 99))
    assert "no CUDA device" in missing or "no cuda:99" in missing


@pytest.mark.parametrize("op", ["prefill_attention", "decode_attention"])
@pytest.mark.parametrize(("gathered", "mask"), [(2**27, 2**25), (1, 1), (1, 2**25), (2**27, 700), (20_000, 3000)])
def test_attention_in_tiles_of_padded_sequences(monkeypatch: pytest.MonkeyPatch, op: str, gathered: int, mask: int) -> None:
    monkeypatch.setattr(attention, "_lengths_can_be_read", lambda device: False)
    calls = []
    attend = attention._attend
    monkeypatch.setattr(attention, "_attend", lambda *args: calls.append(args[0].shape) or attend(*args))
    monkeypatch.setattr(attention, "_MAX_GATHERED", gathered)
    monkeypatch.setattr(attention, "_MAX_MASK", mask)
    cases = conformance_cases(ops=[op])
    report = check_function(op, getattr(torch_backend, op), cases)
    assert report.status == "ok", report.problems
    small = gathered < 2**27 or (mask < 2**25 and op == "prefill_attention")
    assert (len(calls) >= len(cases)) == small


def test_rms_norm_rounds_before_the_weight_only_without_offset() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(4, 256, generator=generator).bfloat16() for _ in range(2))
    weight, eps = weight[0], 1e-6
    normed = x.float() / torch.sqrt(x.float().square().mean(-1, keepdim=True) + eps)
    rounded_twice = (normed.bfloat16().float() * weight.float()).bfloat16()
    rounded_once = (normed * weight.float()).bfloat16()
    assert not torch.equal(rounded_once, rounded_twice)
    torch.testing.assert_close(torch_backend.rms_norm(x, weight, eps), rounded_twice, rtol=0, atol=0)
    offset = (normed * (1.0 + weight.float())).bfloat16()
    torch.testing.assert_close(torch_backend.rms_norm(x, weight, eps, 1.0), offset, rtol=0, atol=0)


def test_sum_is_rounded_before_it_is_normalised() -> None:
    x, residual = torch.full((1, 64), 256.0).bfloat16(), torch.ones(1, 64).bfloat16()
    residual[0, :32] = 0.0  # 256 + 1 rounds to 256 in bfloat16, so both halves are equal after the sum
    normed, total = torch_backend.add_rms_norm(x, residual, torch.ones(64).bfloat16(), 1e-6)
    assert total.unique().tolist() == [256.0]
    assert normed.unique().tolist() == [1.0]


def test_query_without_a_visible_key_gives_zeros() -> None:
    cache = torch.randn(3, 1, 16, 64)
    q = torch.randn(4, 2, 64)
    tables, starts, kv_lens = torch.tensor([[1]]).int(), torch.tensor([0, 4]).int(), torch.tensor([2]).int()
    out = torch_backend.prefill_attention(q, cache, cache, tables, starts, kv_lens, 4, 0.125)
    assert out[:2].eq(0).all()
    torch.testing.assert_close(out[2], cache[1, :, 0].expand(2, 64))


@pytest.mark.parametrize("op", ["prefill", "decode"])
def test_attention_over_an_empty_table_gives_zeros(op: str) -> None:
    q, cache, tables = torch.randn(2, 2, 64), torch.randn(3, 1, 16, 64), torch.zeros(2, 0).int()
    kv_lens, starts = torch.zeros(2).int(), torch.tensor([0, 1, 2]).int()
    if op == "prefill":
        out = torch_backend.prefill_attention(q, cache, cache, tables, starts, kv_lens, 1, 0.125)
    else:
        out = torch_backend.decode_attention(q, cache, cache, tables, kv_lens, 0.125)
    assert out.shape == q.shape
    assert out.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_are_contiguous_though_the_inputs_are_permuted(dtype: torch.dtype) -> None:
    x, y = (torch.randn(3, 4, 64, dtype=dtype).transpose(0, 1) for _ in range(2))
    weight, angles = torch.ones(64, dtype=dtype), torch.ones(4, 32)
    results = [
        torch_backend.add(x, y),
        torch_backend.silu_and_mul(x),
        torch_backend.sigmoid_mul(x, y),
        torch_backend.rms_norm(x, weight, 1e-6),
        *torch_backend.add_rms_norm(x, y, weight, 1e-6),
        torch_backend.gated_rms_norm(x, y, weight, 1e-6),
        torch_backend.linear(x, weight[None]),
        *torch_backend.rotary_embedding(x, y, angles, angles),
    ]
    assert [result.is_contiguous() for result in results] == [True] * len(results)
