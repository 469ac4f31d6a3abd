"""Attention's arguments, schemas and fake kernels: what can be seen without a GPU."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import qvllm_kernels


def bf16(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def int32(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def decode_arguments(**changes: Any) -> dict[str, Any]:
    arguments = {
        "q": bf16(2, 4, 64),
        "k_cache": bf16(5, 2, 16, 64),
        "v_cache": bf16(5, 2, 16, 64),
        "block_tables": int32(2, 3),
        "kv_lens": int32(2),
        "scale": 0.125,
    }
    return arguments | changes


BAD_CACHES = [
    ({"q": torch.zeros(2, 4, 64)}, "q must be bfloat16, got Float"),
    ({"q": bf16(2, 4, 96)}, r"head_dim 32, 64, 128 or 256, got \[2, 4, 96\]"),
    ({"q": bf16(2, 256)}, r"q must be \[tokens, q_heads, head_dim\].*got \[2, 256\]"),
    ({"q": bf16(2, 64, 4).transpose(1, 2)}, r"last dimension of q must be contiguous \(stride 1\), got stride 4"),
    ({"q": bf16(2, 5, 64)}, "5 query heads are no multiple of 2 key heads"),
    ({"k_cache": torch.zeros(5, 2, 16, 64)}, "k_cache must be bfloat16, got Float"),
    ({"k_cache": bf16(5, 2, 16, 128)}, r"k_cache must be \[num_blocks, kv_heads, block_size, 64\].*got \[5, 2, 16, 128\]"),
    ({"v_cache": bf16(5, 2, 64)}, r"v_cache must be .*got \[5, 2, 64\]"),
    ({"k_cache": bf16(5, 2, 24, 64), "v_cache": bf16(5, 2, 24, 64)}, "block_size must be a multiple of 16, got 24"),
    ({"k_cache": bf16(5, 2, 0, 64), "v_cache": bf16(5, 2, 0, 64)}, "block_size must be a multiple of 16, got 0"),
    ({"v_cache": bf16(5, 2, 32, 64)}, r"k_cache and v_cache differ: \[5, 2, 16, 64\] and \[5, 2, 32, 64\]"),
    ({"k_cache": bf16(5, 2, 16, 128)[..., :64]}, "a block of one head of k_cache must be contiguous, got strides 128 and 1"),
    ({"v_cache": bf16(5 * 2 * 1024 + 1)[1:].view(5, 2, 16, 64)}, "every block of v_cache must start on 16 bytes"),
    (
        {"v_cache": bf16(5 * 2100).as_strided((5, 2, 16, 64), (2100, 1025, 64, 1))},
        "every block of v_cache must start on 16 bytes",
    ),
    ({"block_tables": int32(3, 2)}, r"block_tables must be \[2, width\], one row per sequence, got \[3, 2\]"),
    ({"block_tables": torch.zeros(2, 2, dtype=torch.int64)}, "block_tables must be int32, got Long"),
    ({"block_tables": int32(3, 2).t()}, "last dimension of block_tables must be contiguous, got stride 2"),
    ({"kv_lens": int32(3)}, r"kv_lens must be \[2\], got \[3\]"),
    ({"kv_lens": torch.zeros(2, dtype=torch.int64)}, "kv_lens must be int32, got Long"),
    ({"kv_lens": int32(4)[::2]}, "last dimension of kv_lens must be contiguous, got stride 2"),
]


def test_decode_refuses_cpu_tensors() -> None:
    with pytest.raises(RuntimeError, match=r"^decode_attention: qvllm_kernels runs on CUDA tensors only, got CPU tensors"):
        qvllm_kernels.decode_attention(**decode_arguments())


@pytest.mark.parametrize(("changes", "message"), BAD_CACHES)
def test_decode_names_the_bad_argument(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=f"^decode_attention: .*{message}"):
        qvllm_kernels.decode_attention(**decode_arguments(**changes))


@pytest.mark.parametrize(
    "workspace", [torch.zeros(9000, dtype=torch.float16), torch.zeros(2, 9000), torch.zeros(9001)[1:], torch.zeros(90)[::2]]
)
def test_decode_names_a_bad_workspace(workspace: Tensor) -> None:
    with pytest.raises(
        RuntimeError, match="workspace must be a contiguous float32 tensor of one dimension; make it with decode_workspace"
    ):
        qvllm_kernels.decode_attention(**decode_arguments(workspace=workspace))


@pytest.mark.parametrize("splits", [-1, 65])
def test_decode_names_bad_splits(splits: int) -> None:
    with pytest.raises(RuntimeError, match=f"splits must be 0 to 64, got {splits}"):
        torch.ops.qvllm.decode_attention(**decode_arguments(), splits=splits)


def test_the_workspace_is_of_zeros_and_grows_with_the_call() -> None:
    cpu = torch.device("cpu")
    small, more = (
        qvllm_kernels.decode_workspace(1, 16, 8, 128, 4096, cpu),
        qvllm_kernels.decode_workspace(256, 16, 8, 128, 131072, cpu),
    )
    assert small.dim() == 1
    assert small.dtype == torch.float32
    assert not small.any()
    assert len(more) >= 256 * 16 * 16 * 129  # sixteen parts of 8192 keys for each head of each sequence


@pytest.mark.parametrize(
    "sizes", [(-1, 16, 8, 128, 64), (1, 15, 8, 128, 64), (1, 16, 0, 128, 64), (1, 16, 8, 0, 64), (1, 16, 8, 128, -1)]
)
def test_workspace_names_bad_sizes(sizes: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match=f"^decode_workspace: .*got {sizes[0]} sequences, {sizes[1]} and {sizes[2]} heads"):
        qvllm_kernels.decode_workspace(*sizes, torch.device("cpu"))


def test_decode_schema() -> None:
    assert str(torch.ops.qvllm.decode_attention.default._schema) == (
        "qvllm::decode_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_tables, Tensor kv_lens, float scale, "
        "Tensor(a!)? workspace=None, int splits=0) -> Tensor"
    )


def test_fake_outputs_have_the_real_shape() -> None:
    with FakeTensorMode():
        q = torch.empty(3, 12, 128, dtype=torch.bfloat16, device="meta")[:, :8]
        cache = torch.empty(9, 2, 64, 128, dtype=torch.bfloat16, device="meta")
        lens, tables = (torch.empty(shape, dtype=torch.int32, device="meta") for shape in ((3,), (3, 5)))
        y = qvllm_kernels.decode_attention(q, cache, cache, tables, lens, 0.1)
    assert y.shape == q.shape
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous()


@pytest.mark.gpu
def test_opcheck() -> None:
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    arguments = {
        name: x.cuda() if isinstance(x, Tensor) else x
        for name, x in decode_arguments(kv_lens=torch.tensor([5, 0]).int()).items()
    }
    for workspace in (None, torch.zeros(200_000, device="cuda")):
        torch.library.opcheck(
            torch.ops.qvllm.decode_attention.default, (), arguments | {"workspace": workspace}, test_utils=checks
        )


@pytest.mark.gpu
def test_devices_must_agree() -> None:
    for name, value in decode_arguments(workspace=torch.zeros(200_000)).items():
        if not isinstance(value, Tensor) or name == "q":
            continue
        arguments = {key: x.cuda() if isinstance(x, Tensor) and key != name else x for key, x in decode_arguments().items()}
        with pytest.raises(RuntimeError, match=f"decode_attention: {name} must be on the same device as q"):
            qvllm_kernels.decode_attention(**arguments | {name: value})
