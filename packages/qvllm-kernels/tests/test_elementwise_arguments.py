"""Operators that only move memory: bad arguments, schemas and fake kernels, which can be seen without a GPU."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import qvllm_kernels

HALF = torch.float16


def bf16(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def f32(*shape: int) -> Tensor:
    return torch.zeros(shape)


def int32(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def int64(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def caches() -> dict[str, Any]:
    return {"k_cache": bf16(4, 2, 16, 64), "v_cache": bf16(4, 2, 16, 64), "slot_mapping": int64(3)}


TABLES = {"cos": f32(3, 32), "sin": f32(3, 32)}
NORM = {"weight": bf16(64), "eps": 1e-6}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "add": {"x": bf16(2, 64), "y": bf16(2, 64)},
    "sigmoid_mul": {"x": bf16(2, 64), "gate": bf16(2, 64)},
    "add_rms_norm": {"x": bf16(2, 64), "residual": bf16(2, 64), **NORM},
    "gated_rms_norm": {"x": bf16(2, 64), "gate": bf16(2, 64), **NORM},
    "embedding": {"token_ids": int32(3), "weight": bf16(5, 64)},
    "rotary_embedding": {"q": bf16(3, 4, 64), "k": bf16(3, 2, 64), **TABLES},
    "store_kv": {"k": bf16(3, 2, 64), "v": bf16(3, 2, 64), **caches()},
    "qk_norm_rope_store": {
        "qkv": bf16(3, 512),
        "q_weight": bf16(64),
        "k_weight": bf16(64),
        "eps": 1e-6,
        "weight_offset": 0.0,
        **TABLES,
        **caches(),
        "num_q_heads": 4,
        "num_kv_heads": 2,
    },
}

OTHERS = {"add": "y", "sigmoid_mul": "gate", "add_rms_norm": "residual", "gated_rms_norm": "gate"}
BAD_SECOND = [
    ({"x": f32(2, 64)}, "x must be bfloat16, got Float"),
    ({"x": bf16()}, "x must have at least one dimension"),
    ({"x": bf16(2, 60)}, r"positive multiple of 8, got shape \[2, 60\]"),
    ({"x": bf16(64, 64).t()}, r"last dimension of x must be contiguous \(stride 1\), got stride 64"),
    ({"other": bf16(64)}, r"{other} must have the shape of x, \[2, 64\], got \[64\]"),
    ({"other": bf16(3, 64)}, r"{other} must have the shape of x, \[2, 64\], got \[3, 64\]"),
    ({"other": torch.zeros(2, 64, dtype=HALF)}, "{other} must be bfloat16, got Half"),
    ({"other": bf16(64, 2).t()}, "last dimension of {other} must be contiguous"),
]
BAD_NORM = [
    ({"weight": bf16(32)}, r"weight must be \[64\] like the last dimension of x, got \[32\]"),
    ({"weight": bf16(1, 64)}, r"got \[1, 64\]"),
    ({"weight": bf16(128)[::2]}, "weight must be contiguous, got stride 2"),
    ({"weight": torch.zeros(64, dtype=HALF)}, "weight must be bfloat16.*, got Half"),
    ({"eps": -1e-6}, "eps must be zero or positive, got -1e-06"),
    ({"eps": float("nan")}, "eps must be zero or positive, got nan"),
    ({"x": bf16(1, 16392), "weight": bf16(16392)}, "at most 16384, got 16392"),
]
BAD_TABLES = [
    ({"cos": f32(2, 32)}, r"cos must be \[tokens, rotary_dim / 2\], that is 3 rows of a multiple of 8 up to 32, got \[2, 32\]"),
    ({"cos": f32(3, 40)}, r"cos must be .*, got \[3, 40\]"),
    ({"cos": f32(3, 0)}, r"cos must be .*, got \[3, 0\]"),
    ({"cos": f32(3, 12)}, r"cos must be .*, got \[3, 12\]"),
    ({"cos": f32(32, 3).t()}, "last dimension of cos must be contiguous"),
    ({"sin": f32(3, 16)}, r"cos and sin differ: \[3, 32\] and \[3, 16\]"),
    ({"sin": bf16(3, 32)}, "sin must be float32, got BFloat16"),
]
BAD_CACHES = [
    ({"k_cache": bf16(4, 2, 64)}, r"k_cache must be \[num_blocks, 2, block_size, 64\], got \[4, 2, 64\]"),
    ({"k_cache": bf16(4, 3, 16, 64)}, r"k_cache must be .*, got \[4, 3, 16, 64\]"),
    ({"v_cache": bf16(4, 2, 16, 32)}, r"v_cache must be .*, got \[4, 2, 16, 32\]"),
    ({"v_cache": bf16(4, 2, 0, 64)}, r"v_cache must be .*, got \[4, 2, 0, 64\]"),
    ({"v_cache": bf16(4, 2, 32, 64)}, r"k_cache and v_cache differ: \[4, 2, 16, 64\] and \[4, 2, 32, 64\]"),
    ({"v_cache": f32(4, 2, 16, 64)}, "v_cache must be bfloat16, got Float"),
    (
        {"k_cache": bf16(4, 16, 2, 64).transpose(1, 2)},
        "a block of one head of k_cache must be contiguous, got strides 128 and 1",
    ),
    ({"k_cache": bf16(4 * 2 * 1024 + 1)[1:].view(4, 2, 16, 64)}, "every block of k_cache must start on 16 bytes"),
    ({"v_cache": bf16(9000).as_strided((4, 2, 16, 64), (2050, 1024, 64, 1))}, "every block of v_cache must start on 16 bytes"),
    ({"k_cache": bf16(1, 2, 16, 64).expand(2**28, 2, 16, 64)}, "k_cache may have at most 2147483647 slots, got 4294967296"),
    ({"slot_mapping": int32(3)}, "slot_mapping must be int64, got Int"),
    ({"slot_mapping": int64(2)}, r"slot_mapping must be \[3\], got \[2\]"),
    ({"slot_mapping": int64(6)[::2]}, "slot_mapping must be contiguous, got stride 2"),
]
BAD: dict[str, list[tuple[dict[str, Any], str]]] = {
    **{op: BAD_SECOND + (BAD_NORM if "norm" in op else []) for op in OTHERS},
    "embedding": [
        ({"weight": f32(5, 64)}, "weight must be bfloat16, got Float"),
        ({"weight": bf16(64)}, r"weight must be \[rows, dim\], got \[64\]"),
        ({"weight": bf16(64, 5).t()}, "last dimension of weight must be contiguous"),
        ({"weight": bf16(5, 65)[:, :64]}, "every row of weight must start on 16 bytes, got a row stride of 65 elements"),
        ({"weight": bf16(5 * 64 + 1)[1:].view(5, 64)}, "every row of weight must start on 16 bytes"),
        ({"token_ids": int32(3, 1)}, r"token_ids must be \[tokens\], got \[3, 1\]"),
        ({"token_ids": int32(6)[::2]}, "token_ids must be contiguous, got stride 2"),
        ({"token_ids": int64(3)}, "token_ids must be int32, got Long"),
        ({"first_id": -1}, "first_id must be zero or positive, got -1"),
    ],
    "rotary_embedding": [
        ({"q": f32(3, 4, 64)}, "q must be bfloat16, got Float"),
        ({"k": f32(3, 2, 64)}, "k must be bfloat16, got Float"),
        ({"q": bf16(3, 64)}, r"q must be \[tokens, q_heads, head_dim\] .*, got \[3, 64\] and \[3, 2, 64\]"),
        ({"k": bf16(2, 2, 64)}, r"got \[3, 4, 64\] and \[2, 2, 64\]"),
        ({"k": bf16(3, 2, 32)}, r"got \[3, 4, 64\] and \[3, 2, 32\]"),
        ({"k": bf16(3, 0, 64)}, r"and \[3, 0, 64\]"),
        ({"k": bf16(3, 64, 2).mT}, "last dimension of k must be contiguous"),
        ({"q": bf16(3, 64, 4).mT}, "last dimension of q must be contiguous"),
        ({"q": bf16(3, 4, 60), "k": bf16(3, 2, 60)}, "head_dim must be a multiple of 8 up to 512, got 60"),
        ({"q": bf16(3, 4, 520), "k": bf16(3, 2, 520)}, "head_dim must be a multiple of 8 up to 512, got 520"),
        *BAD_TABLES,
    ],
    "store_kv": [
        ({"k": f32(3, 2, 64)}, "k must be bfloat16, got Float"),
        ({"k": bf16(3, 128)}, r"k must be \[tokens, kv_heads, head_dim\], got \[3, 128\]"),
        ({"k": bf16(3, 2, 60)}, "multiple of 8"),
        ({"v": bf16(3, 1, 64)}, r"v must have the shape of k, \[3, 2, 64\], got \[3, 1, 64\]"),
        ({"v": bf16(3, 64, 2).mT}, "last dimension of v must be contiguous"),
        *BAD_CACHES,
    ],
    "qk_norm_rope_store": [
        ({"qkv": f32(3, 512)}, "qkv must be bfloat16, got Float"),
        ({"qkv": bf16(3, 8, 64)}, r"qkv must be \[tokens, 512\], that is 4 \+ 2 \* 2 heads of 64, got \[3, 8, 64\]"),
        ({"qkv": bf16(3, 504)}, r"qkv must be \[tokens, 512\], .*, got \[3, 504\]"),
        ({"num_q_heads": 3}, r"qkv must be \[tokens, 448\], that is 3 \+ 2 \* 2 heads"),
        ({"num_kv_heads": 0}, "there must be heads, got num_q_heads 4 and num_kv_heads 0"),
        ({"num_q_heads": -4}, "there must be heads, got num_q_heads -4"),
        ({"q_weight": bf16(1, 64)}, r"q_weight must be \[head_dim\], got \[1, 64\]"),
        ({"q_weight": f32(64)}, "q_weight must be bfloat16, got Float"),
        ({"k_weight": bf16(32)}, r"k_weight must be \[64\], got \[32\]"),
        ({"k_weight": bf16(128)[::2]}, "k_weight must be contiguous, got stride 2"),
        ({"k_weight": torch.zeros(64, dtype=HALF)}, "k_weight must be bfloat16, got Half"),
        ({"q_weight": bf16(60), "k_weight": bf16(60)}, "head_dim must be a multiple of 8 up to 512, got 60"),
        ({"eps": -1.0}, "eps must be zero or positive, got -1"),
        *BAD_TABLES,
        *BAD_CACHES,
    ],
}
CASES = [(op, changed, message) for op, bad in BAD.items() for changed, message in bad]


@pytest.mark.parametrize("op", ARGUMENTS)
def test_refuses_cpu_tensors(op: str) -> None:
    with pytest.raises(RuntimeError, match=rf"^{op}: qvllm_kernels runs on CUDA tensors only, got CPU tensors"):
        getattr(qvllm_kernels, op)(**ARGUMENTS[op])


@pytest.mark.parametrize(("op", "changed", "message"), CASES)
def test_names_the_bad_argument(op: str, changed: dict[str, Any], message: str) -> None:
    other = OTHERS.get(op, "")
    changed = {other if name == "other" else name: value for name, value in changed.items()}
    with pytest.raises(RuntimeError, match=f"^{op}: .*{message.replace('{other}', other)}"):
        getattr(qvllm_kernels, op)(**(ARGUMENTS[op] | changed))


def test_the_gated_norm_alone_takes_a_float32_weight() -> None:
    with pytest.raises(RuntimeError, match="weight must be bfloat16, got Float"):
        qvllm_kernels.add_rms_norm(**(ARGUMENTS["add_rms_norm"] | {"weight": f32(64)}))
    with pytest.raises(RuntimeError, match="got CPU tensors"):
        qvllm_kernels.gated_rms_norm(**(ARGUMENTS["gated_rms_norm"] | {"weight": f32(64)}))


def tensors_of(op: str) -> list[str]:
    return [name for name, value in ARGUMENTS[op].items() if isinstance(value, Tensor)]


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "name"), [(op, name) for op in ARGUMENTS for name in tensors_of(op)])
def test_devices_must_agree(op: str, name: str) -> None:
    on_gpu = {key: value.cuda() if isinstance(value, Tensor) else value for key, value in ARGUMENTS[op].items()}
    with pytest.raises(RuntimeError, match=f"^{op}: .* must be on the same device"):
        getattr(qvllm_kernels, op)(**(on_gpu | {name: ARGUMENTS[op][name]}))


SCHEMAS = {
    "add": "(Tensor x, Tensor y) -> Tensor",
    "sigmoid_mul": "(Tensor x, Tensor gate) -> Tensor",
    "add_rms_norm": "(Tensor x, Tensor residual, Tensor weight, float eps, float weight_offset=0.) -> (Tensor, Tensor)",
    "gated_rms_norm": "(Tensor x, Tensor gate, Tensor weight, float eps) -> Tensor",
    "embedding": "(Tensor token_ids, Tensor weight, int first_id=0) -> Tensor",
    "rotary_embedding": "(Tensor q, Tensor k, Tensor cos, Tensor sin) -> (Tensor, Tensor)",
    "store_kv": "(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping) -> ()",
    "qk_norm_rope_store": "(Tensor qkv, Tensor q_weight, Tensor k_weight, float eps, float weight_offset, Tensor cos, "
    "Tensor sin, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping, int num_q_heads, int num_kv_heads) -> Tensor",
}
SHAPES = {
    "add": [(2, 64)],
    "sigmoid_mul": [(2, 64)],
    "add_rms_norm": [(2, 64), (2, 64)],
    "gated_rms_norm": [(2, 64)],
    "embedding": [(3, 64)],
    "rotary_embedding": [(3, 4, 64), (3, 2, 64)],
    "store_kv": [],
    "qk_norm_rope_store": [(3, 4, 64)],
}


@pytest.mark.parametrize("op", SCHEMAS)
def test_schemas(op: str) -> None:
    assert str(getattr(torch.ops.qvllm, op).default._schema) == f"qvllm::{op}{SCHEMAS[op]}"


def strided(x: Tensor) -> Tensor:
    """The same shape as the left half of wider rows."""
    return torch.empty((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)[..., : x.shape[-1]]


@pytest.mark.parametrize("op", SHAPES)
def test_fake_outputs_have_the_real_shapes_and_are_contiguous(op: str) -> None:
    with FakeTensorMode():
        args = {name: strided(value) if isinstance(value, Tensor) else value for name, value in ARGUMENTS[op].items()}
        out = getattr(qvllm_kernels, op)(**args)
    outs = [] if out is None else list(out) if isinstance(out, tuple) else [out]
    assert [tuple(y.shape) for y in outs] == SHAPES[op]
    assert all(y.is_contiguous() and y.dtype == torch.bfloat16 for y in outs)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ARGUMENTS)
def test_opcheck(op: str) -> None:
    def fresh(x: Tensor) -> Tensor:
        return (
            torch.randn(x.shape, device="cuda").to(x.dtype) if x.is_floating_point() else torch.arange(x.numel()).to(x).cuda()
        )

    args = [fresh(value) if isinstance(value, Tensor) else value for value in ARGUMENTS[op].values()]
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(getattr(torch.ops.qvllm, op).default, tuple(args), test_utils=checks)
