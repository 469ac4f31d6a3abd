"""What reading costs: no weight bytes for the list of tensors, and resident memory near one tensor for the rest."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from qvllm_engine.loading.checkpoint import Checkpoint

MIB = 1 << 20
COUNT, ROWS, COLUMNS = 24, 1024, 1024  # 4 MiB each, 96 MiB in all
TENSOR = ROWS * COLUMNS * 4
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def status(field: str) -> int:
    """A memory figure of this process, in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def growth(action: Callable[[], object]) -> int:
    """By how many bytes the resident memory rises above its start, at its peak, during ``action``."""
    CLEAR.write_text("5")  # sets the peak to the present size
    start = status("VmRSS")
    action()
    return status("VmHWM") - start


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A new checkpoint for each test: pages that an earlier one left mapped would not count as growth."""
    if not os.access(CLEAR, os.W_OK):
        pytest.skip("needs Linux's /proc/self/clear_refs to measure a peak")
    save_file(
        {f"layer.{i}.weight": torch.full((ROWS, COLUMNS), float(i)) for i in range(COUNT)}, tmp_path / "model.safetensors"
    )
    return tmp_path


def test_the_measure_sees_a_whole_file(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)

    def keep_everything() -> None:
        kept = [checkpoint.read(name) for name in checkpoint.tensors]
        assert sum(tensor[0, 0].item() for tensor in kept) == sum(range(COUNT))
        assert sum(float(tensor.sum()) for tensor in kept) > 0

    assert growth(keep_everything) > 0.8 * COUNT * TENSOR


def test_opening_reads_no_weights(folder: Path) -> None:
    assert growth(lambda: Checkpoint.open(folder)) < TENSOR


def test_reading_all_tensors_in_turn_holds_one_at_a_time(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    parameter = torch.empty(ROWS, COLUMNS).fill_(-1.0)

    def load() -> None:
        for i in range(COUNT):
            parameter.copy_(checkpoint.read(f"layer.{i}.weight"))
            assert parameter[-1, -1].item() == i

    # One mapped tensor and some slack; a mapping that stays open would reach the file's 96 MiB.
    assert growth(load) < 4 * TENSOR


def test_a_slice_reads_its_own_bytes(folder: Path) -> None:
    whole = torch.arange(COUNT * ROWS).float().unsqueeze(1).expand(-1, COLUMNS).contiguous()
    save_file({"whole.weight": whole}, folder / "model.safetensors")
    checkpoint = Checkpoint.open(folder)
    part = torch.empty(ROWS, COLUMNS).fill_(-1.0)

    def load() -> None:
        part.copy_(checkpoint.read("whole.weight", (slice(5 * ROWS, 6 * ROWS),)))

    # The slice is 4 of 96 MiB; the kernel maps cached pages around the touched ones too.
    assert growth(load) < 4 * TENSOR
    assert torch.equal(part, whole[5 * ROWS : 6 * ROWS])
