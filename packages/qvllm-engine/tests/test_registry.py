"""Finding backends: order, refusals with the remedy, and never a silent replacement."""

import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from qvllm_engine import BackendError
from qvllm_engine.backends import registry, torch_backend
from qvllm_engine.backends.registry import FUSED_OPS, REQUIRED_OPS, load_backend, select_backend

CPU = torch.device("cpu")


def module(**attributes: Any) -> ModuleType:
    """A backend module; by default it runs anywhere and has every required operator."""
    made = ModuleType("fake_backend")
    made.OPS_API = 1
    made.unavailable_reason = lambda device: None
    for name in REQUIRED_OPS:
        setattr(made, name, getattr(torch_backend, name))
    for name, value in attributes.items():
        if value is None:
            delattr(made, name)
        else:
            setattr(made, name, value)
    return made


class Point(SimpleNamespace):
    """An entry point whose module is at hand, or whose import fails."""

    def load(self) -> ModuleType:
        if isinstance(self.module, Exception):
            raise self.module
        return self.module


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``install(name=module or exception)``: exactly these backends are installed."""

    def run(**modules: ModuleType | Exception) -> None:
        points = [Point(name=name, value=f"{name}_package.ops", module=value) for name, value in modules.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "qvllm.backends" else [])

    return run


def refusal(name: str, needed: tuple[str, ...] = ("linear",)) -> str:
    with pytest.raises(BackendError) as caught:
        select_backend(name, CPU, torch.float32, needed)
    return str(caught.value)


def test_torch_and_the_fixture_are_installed() -> None:
    installed = registry.installed_backends()
    assert {"torch", "toy"} <= installed.keys()
    assert all(isinstance(point, EntryPoint) for point in installed.values())
    assert load_backend("torch", CPU).missing((*REQUIRED_OPS, *FUSED_OPS)) == []


def test_the_contract_names_the_operators() -> None:
    assert {"linear", "embedding", "prefill_attention", "decode_attention", "store_kv", "sample"} <= set(REQUIRED_OPS)
    assert {"norm_linear", "gate_up_silu", "qk_norm_rope_store"} <= set(FUSED_OPS)
    assert not set(REQUIRED_OPS) & set(FUSED_OPS)


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        (["torch", "triton", "cuda"], "cuda"),
        (["torch", "triton"], "triton"),
        (["torch"], "torch"),
        (["other", "torch"], "torch"),
    ],
)
def test_auto_takes_the_first_of_the_fixed_order(install: Callable[..., None], installed: list[str], chosen: str) -> None:
    install(**{name: module() for name in installed})
    assert select_backend("auto", CPU, torch.float32, REQUIRED_OPS).name == chosen


def test_auto_passes_over_what_cannot_run_here(install: Callable[..., None]) -> None:
    broken = ImportError("no driver")
    install(cuda=broken, triton=module(unavailable_reason=lambda device: "no GPU"), torch=module())
    assert select_backend("auto", CPU, torch.float32, ("linear",)).name == "torch"


def test_auto_warns_when_a_backend_lacks_operators(install: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    install(cuda=module(linear=None), torch=module())
    with caplog.at_level(logging.WARNING):
        assert select_backend("auto", CPU, torch.float32, ("linear", "add")).name == "torch"
    assert "'cuda' lacks" in caplog.text
    assert "linear" in caplog.text


def test_auto_says_why_none_can_run(install: Callable[..., None]) -> None:
    install(
        cuda=ImportError("no driver"), triton=module(unavailable_reason=lambda device: "no GPU here"), torch=module(add=None)
    )
    text = refusal("auto", ("add",))
    assert all(word in text for word in ("no driver", "no GPU here", "lacks", "add"))


@pytest.mark.parametrize(
    ("name", "remedy"), [("cuda", "pip install 'qvllm-engine[cuda]'"), ("triton", "pip install 'qvllm-engine[triton]'")]
)
def test_a_missing_backend_prints_the_command(install: Callable[..., None], name: str, remedy: str) -> None:
    install(torch=module())
    text = refusal(name)
    assert remedy in text
    assert "installed: torch" in text


def test_an_unknown_backend_lists_the_installed_ones(install: Callable[..., None]) -> None:
    install(torch=module(), zeta=module())
    text = refusal("fast")
    assert "'fast' is not installed" in text
    assert "torch, zeta" in text


def test_a_named_backend_is_never_replaced(install: Callable[..., None]) -> None:
    for broken in (
        ImportError("libcuda.so.1 not found"),
        module(OPS_API=2),
        module(OPS_API=None),
        module(unavailable_reason=lambda device: "the driver is too old"),
        module(linear=None),
    ):
        install(cuda=broken, torch=module())
        assert "'cuda'" in refusal("cuda")


def test_an_import_error_is_told_with_its_module(install: Callable[..., None]) -> None:
    install(third=ImportError("libthird.so not found"))
    text = refusal("third")
    assert "third_package.ops" in text
    assert "libthird.so not found" in text


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_contract_is_refused_with_both_versions(install: Callable[..., None], version: Any) -> None:
    install(third=module(OPS_API=version))
    text = refusal("third")
    assert str(version) in text
    assert "needs 1" in text


def test_the_reason_of_an_unavailable_backend_is_passed_on_with_the_device(install: Callable[..., None]) -> None:
    install(third=module(unavailable_reason=lambda device: f"no kernels for {device}"))
    assert "cannot run on cpu: no kernels for cpu" in refusal("third")


def test_a_backend_that_cannot_say_whether_it_runs_is_refused(install: Callable[..., None]) -> None:
    install(third=module(unavailable_reason=None))
    assert "unavailable_reason" in refusal("third")


def test_a_dtype_that_a_backend_does_not_take_is_refused_with_those_it_takes(install: Callable[..., None]) -> None:
    install(third=module(DTYPES=(torch.bfloat16, torch.float16)))
    assert "does not compute in float32, only in bfloat16, float16; choose that dtype or another backend" in refusal("third")
    assert select_backend("third", CPU, torch.bfloat16, ("linear",)).name == "third"
    assert load_backend("third", CPU).name == "third"


def test_auto_passes_over_a_backend_that_does_not_take_the_dtype(install: Callable[..., None]) -> None:
    install(cuda=module(DTYPES=(torch.bfloat16,)), torch=module())
    assert select_backend("auto", CPU, torch.float32, ("linear",)).name == "torch"
    assert select_backend("auto", CPU, torch.bfloat16, ("linear",)).name == "cuda"


def test_lacking_operators_are_listed(install: Callable[..., None]) -> None:
    install(third=module(linear=None, rms_norm=None))
    text = refusal("third", ("linear", "add", "rms_norm", "embedding"))
    assert "linear, rms_norm" in text
    assert "embedding" not in text


def test_a_fused_operator_lacks_where_its_parts_lack(install: Callable[..., None]) -> None:
    install(third=module(silu_and_mul=None))
    assert "gate_up_silu" in refusal("third", ("gate_up_silu", "norm_linear"))
    assert select_backend("third", CPU, torch.float32, ("norm_linear",)).name == "third"


def test_a_backends_own_fused_operator_comes_before_the_composite(install: Callable[..., None]) -> None:
    def fused(x: object, weight: object) -> str:
        return "fused"

    install(third=module(gate_up_silu=fused))
    assert select_backend("third", CPU, torch.float32, ("gate_up_silu",)).ops.gate_up_silu is fused


def test_a_composite_calls_the_backends_own_operators(install: Callable[..., None]) -> None:
    calls = []

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        calls.append("linear")
        return torch_backend.linear(x, weight, bias)

    install(third=module(linear=linear))
    ops = select_backend("third", CPU, torch.float32, ("linear_add",)).ops
    x, weight, residual = torch.randn(3, 4), torch.randn(5, 4), torch.randn(3, 5)
    torch.testing.assert_close(ops.linear_add(x, weight, residual), x @ weight.T + residual)
    assert calls == ["linear"]


def test_nothing_of_the_module_but_operators_is_bound(install: Callable[..., None]) -> None:
    install(third=module(helper=lambda: None))
    assert set(vars(select_backend("third", CPU, torch.float32, ()).ops)) <= {*REQUIRED_OPS, *FUSED_OPS}
