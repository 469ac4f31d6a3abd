"""The benchmark's cases: each runs, and torch's counterpart computes the same."""

import csv
from collections.abc import Iterator
from pathlib import Path

import cases
import cases_heads
import ops
import pytest
import torch
from timing import Ceilings, Timing, number_of_inputs

import qvllm_kernels

TINY = cases.Model("tiny", 64, 96, 4, 2, 64, 32, 101, gdn_head_dim=32, block_size=16)


def tiny_cases() -> Iterator[cases.Case]:
    for rows in (1, 5):
        yield from cases.elementwise(TINY, rows)
        yield from cases_heads.heads(TINY, rows)


CASES = list(tiny_cases())


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=[f"{case.op}, {case.label}" for case in CASES])
def test_torchs_counterpart_computes_the_same(case: cases.Case) -> None:
    pair = case.make()
    for y, expected in zip(*((x if isinstance(x, tuple) else (x,)) for x in (pair.ours(), pair.torchs())), strict=True):
        if expected is not None:
            torch.testing.assert_close(y, expected, rtol=2**-5, atol=2**-5)  # torch rounds at every step


def test_every_model_has_the_cases() -> None:
    for model in cases.MODELS:
        listed = list(ops.cases_of(model, quick=False))
        assert {case.op for case in listed} == {case.op for case in CASES}
        assert all(callable(getattr(qvllm_kernels, case.op)) for case in listed)
        assert len({(case.op, case.label) for case in listed}) == len(listed)
        assert len(list(ops.cases_of(model, quick=True))) < len(listed)


def test_bytes() -> None:
    by_name = {(case.op, case.label): case for case in ops.cases_of(cases.QWEN3, quick=False)}
    assert by_name["add", "16384 rows"].moved == 3 * 16384 * 1024 * 2
    assert by_name["store_kv", "1 rows"].moved == 4 * 8 * 128 * 2 + 8


def test_the_table_and_its_csv(tmp_path: Path) -> None:
    limits = Ceilings(copy=4e12, empty=0.8)
    assert limits.floor(8_000_000) == 2.0
    assert limits.floor(0) == 0.8
    row = ops.Row("tiny", CASES[0], Timing(4.0, 3.9, 4.1), None, 2.0)
    assert "50%" in str(row)
    ops.write_csv(tmp_path / "a.csv", [row], "a GPU", limits)
    with (tmp_path / "a.csv").open() as file:
        line = next(csv.DictReader(file))
    assert (line["op"], float(line["us"]), line["torch_us"], line["device"]) == (CASES[0].op, 4.0, "nan", "a GPU")


def test_inputs_never_fit_in_the_cache_together() -> None:
    assert number_of_inputs(1) == 64
    assert number_of_inputs(200 << 20) == 3
    assert number_of_inputs(1 << 40) == 1
