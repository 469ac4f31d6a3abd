"""load_weights: every tensor accounted for, every parameter filled, all faults in one error; dummy weights; prepare_weight."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from qvllm_engine import CheckpointError
from qvllm_engine.distributed.groups import Group
from qvllm_engine.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from qvllm_engine.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from qvllm_engine.layers.norm import RMSNorm
from qvllm_engine.loading.checkpoint import Checkpoint
from qvllm_engine.loading.weights import fill_with_dummy_weights, load_weights, prepare_weights
from qvllm_engine.model_spec import ModelContext

NAMES = {
    "embed": ("embedding.weight", ""),
    "q": ("qkv.weight", "q"),
    "k": ("qkv.weight", "k"),
    "v": ("qkv.weight", "v"),
    "out": ("out.weight", ""),
    "gate": ("gate_up.weight", "gate"),
    "up": ("gate_up.weight", "up"),
    "norm": ("norm.weight", ""),
    "head": ("lm_head.weight", ""),
    "known": None,
}
SHAPES = {
    "embed": (32, 8),
    "q": (16, 8),
    "k": (8, 8),
    "v": (8, 8),
    "out": (8, 16),
    "gate": (12, 8),
    "up": (12, 8),
    "norm": (8,),
}


class Net(nn.Module):
    """One layer of each kind, with any rank's shards."""

    def __init__(self, rank: int = 0, size: int = 1, dtype: torch.dtype = torch.float32, tied: bool = True) -> None:
        super().__init__()
        context = ModelContext(SimpleNamespace(), Group(rank, size), torch.device("cpu"), dtype)
        self.embedding = VocabParallelEmbedding(context, 32, 8)
        self.qkv = QKVParallelLinear(context, 8, 4, 2, 4)
        self.out = RowParallelLinear(context, 16, 8)
        self.gate_up = MergedColumnParallelLinear(context, 8, {"gate": 12, "up": 12}, "gate_up")
        self.norm = RMSNorm(context, 8, 1e-6)
        self.lm_head = ParallelLMHead(context, 32, 8, self.embedding if tied else None)


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return {name: torch.randn(shape) for name, shape in SHAPES.items()}


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Net]:
    def run(tensors: dict[str, Tensor], net: Net | None = None) -> Net:
        net = net or Net()
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
        load_weights(net, Checkpoint.open(tmp_path), NAMES.__getitem__)
        return net

    return run


def refusal(load: Callable[..., Net], tensors: dict[str, Tensor], net: Net | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(tensors, net)
    return str(caught.value)


def test_parts_are_put_side_by_side(load: Callable[..., Net], tensors: dict[str, Tensor]) -> None:
    net = load(tensors)
    assert torch.equal(net.embedding.weight, tensors["embed"])
    assert torch.equal(net.qkv.weight, torch.cat([tensors["q"], tensors["k"], tensors["v"]]))
    assert torch.equal(net.gate_up.weight, torch.cat([tensors["gate"], tensors["up"]]))
    assert torch.equal(net.out.weight, tensors["out"])
    assert torch.equal(net.norm.weight, tensors["norm"])


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floats_are_converted(
    load: Callable[..., Net], tensors: dict[str, Tensor], stored: torch.dtype, dtype: torch.dtype
) -> None:
    stored_tensors = {name: tensor.to(stored) for name, tensor in tensors.items()}
    net = load(stored_tensors, Net(dtype=dtype))
    assert net.qkv.weight.dtype == dtype
    assert torch.equal(net.out.weight, stored_tensors["out"].to(dtype))


def test_missing_tensors_are_listed_by_parameter_and_part(load: Callable[..., Net], tensors: dict[str, Tensor]) -> None:
    for name in ("k", "out", "up"):
        del tensors[name]
    text = refusal(load, tensors)
    assert "missing tensor for qkv.weight part k" in text
    assert "missing tensor for out.weight" in text
    assert "missing tensor for gate_up.weight part up" in text
    assert text.count("missing tensor") == 3


def test_an_unexpected_tensor_is_named_with_its_shape(load: Callable[..., Net], tensors: dict[str, Tensor]) -> None:
    text = refusal(load, {**tensors, "extra.bias": torch.zeros(3, 2)})
    assert "unexpected tensor extra.bias [3, 2]" in text


def test_a_tensor_without_a_place_in_this_config_is_unexpected(load: Callable[..., Net], tensors: dict[str, Tensor]) -> None:
    assert "unexpected tensor head" in refusal(load, {**tensors, "head": torch.zeros(32, 8)})  # the head is tied


def test_a_known_tensor_that_is_not_needed_is_skipped(load: Callable[..., Net], tensors: dict[str, Tensor]) -> None:
    load({**tensors, "known": torch.zeros(5, dtype=torch.int64)})


@pytest.mark.parametrize("shape", [(16, 4), (8, 16), (16, 9), (128,), (16, 8, 1), (15, 8)])
def test_a_wrong_shape_is_told_with_both_shapes(
    load: Callable[..., Net], tensors: dict[str, Tensor], shape: tuple[int, ...]
) -> None:
    text = refusal(load, {**tensors, "q": torch.zeros(shape)})
    assert f"q has shape {list(shape)}, the config needs [16, 8]" in text
    assert "missing" not in text


def test_a_wrong_shape_is_found_by_every_rank(load: Callable[..., Net], tensors: dict[str, Tensor]) -> None:
    # Large enough for the slice that this rank reads.
    assert "the config needs [16, 8]" in refusal(load, {**tensors, "q": torch.zeros(32, 8)}, Net(rank=1, size=2))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float64, torch.float8_e4m3fn])
def test_a_wrong_dtype_is_refused(load: Callable[..., Net], tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
    text = refusal(load, {**tensors, "norm": torch.zeros(8).to(dtype)})
    assert "norm has dtype" in text
    assert "BF16, F16, F32" in text


def test_two_tensors_for_one_place_are_refused(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    names = {**NAMES, "norm_again": ("norm.weight", "")}
    save_file({**tensors, "norm_again": torch.zeros(8)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"norm\.weight") as caught:
        load_weights(Net(), Checkpoint.open(tmp_path), names.__getitem__)
    assert "norm_again" in str(caught.value)


def test_all_faults_come_in_one_error_and_nothing_is_copied(load: Callable[..., Net], tensors: dict[str, Tensor]) -> None:
    net = Net()
    for weight in net.parameters():
        weight.data.fill_(7.0)
    del tensors["v"]
    tensors.update(q=torch.zeros(2, 2), norm=torch.zeros(8, dtype=torch.int32), extra=torch.zeros(1))
    text = refusal(load, tensors, net)
    for fault in (
        "missing tensor for qkv.weight part v",
        "q has shape [2, 2]",
        "norm has dtype I32",
        "unexpected tensor extra",
    ):
        assert fault in text
    assert all(bool((weight == 7.0).all()) for weight in net.parameters())


def test_a_long_list_of_faults_is_cut_with_the_count(load: Callable[..., Net], tensors: dict[str, Tensor]) -> None:
    text = refusal(load, {**tensors, **{f"x{i}": torch.zeros(1) for i in range(50)}})
    assert "and 30 more" in text
    assert text.count("\n") < 30


def test_a_tied_head_is_the_embedding(load: Callable[..., Net], tensors: dict[str, Tensor]) -> None:
    net = load(tensors, Net(tied=True))
    assert net.lm_head.weight is net.embedding.weight


def test_an_untied_head_must_be_there(load: Callable[..., Net], tensors: dict[str, Tensor]) -> None:
    assert "missing tensor for lm_head.weight" in refusal(load, tensors, Net(tied=False))
    head = torch.randn(32, 8)
    net = load({**tensors, "head": head}, Net(tied=False))
    assert torch.equal(net.lm_head.weight, head)
    assert torch.equal(net.embedding.weight, tensors["embed"])


def test_a_parameter_that_nothing_would_fill_is_refused(load: Callable[..., Net], tensors: dict[str, Tensor]) -> None:
    net = Net()
    net.scale = nn.Parameter(torch.zeros(3))
    with pytest.raises(TypeError, match="scale"):
        load(tensors, net)


@pytest.mark.parametrize("tied", [True, False])
def test_prepare_weight_sees_every_weight_once_and_its_result_stays(tied: bool) -> None:
    calls = []
    backend = ModuleType("backend")

    def prepare(kind: str, tensor: Tensor) -> Tensor:
        calls.append((kind, tuple(tensor.shape)))
        return tensor + 1

    backend.prepare_weight = prepare
    net = Net(tied=tied)
    for weight in net.parameters():
        weight.data.zero_()
    prepare_weights(net, backend)
    head = [] if tied else [("lm_head", (32, 8))]
    want = [("embedding", (32, 8)), ("qkv", (32, 8)), ("linear", (8, 16)), ("gate_up", (24, 8)), ("norm", (8,)), *head]
    assert sorted(calls) == sorted(want)
    assert all(bool((weight == 1).all()) for weight in net.parameters())


def test_a_backend_without_prepare_weight_leaves_weights_alone() -> None:
    net = Net()
    before = {name: weight.data_ptr() for name, weight in net.named_parameters()}
    prepare_weights(net, ModuleType("backend"))
    assert {name: weight.data_ptr() for name, weight in net.named_parameters()} == before


def dummy(rank: int = 0, size: int = 1, seed: int = 3, tied: bool = True) -> Net:
    net = Net(rank, size, tied=tied)
    for weight in net.parameters():
        weight.data.fill_(float("nan"))
    fill_with_dummy_weights(net, seed)
    return net


@pytest.mark.parametrize("size", [2, 4])
def test_dummy_weights_are_the_same_for_any_number_of_ranks(size: int) -> None:
    whole = dummy(tied=False)
    for rank in range(size):
        part = dummy(rank, size, tied=False)
        for (name, weight), full in zip(part.named_parameters(), whole.parameters(), strict=True):
            for key, shard in weight.shards.items():
                assert torch.equal(weight[shard.rows], full[full.shards[key].rows][shard.source]), (name, key)


def test_dummy_weights_fill_everything_with_the_scale_of_a_trained_model() -> None:
    net = dummy()
    assert all(bool(weight.isfinite().all()) for weight in net.parameters())
    assert 0.1 < net.qkv.weight.std() * 8**0.5 < 10
    assert (net.norm.weight - 1).abs().max() < 1


def test_dummy_weights_follow_the_seed() -> None:
    same, again, other = dummy(), dummy(), dummy(seed=4)
    for a, b, c in zip(same.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_dummy_parts_differ() -> None:
    net = dummy()
    q, k, v = net.qkv.weight.split([16, 8, 8])
    assert not torch.equal(k, v)
    assert not torch.equal(q[:8], k)
