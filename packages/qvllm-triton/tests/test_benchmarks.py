"""The benchmark's cases: each runs, and torch's counterpart computes the same."""

import csv
from collections.abc import Iterator
from pathlib import Path

import cases
import cases_attention
import cases_sampling
import ops
import pytest
import torch
import tune_linear
from timing import Ceilings, Timing, number_of_inputs
from triton_references import DEVICE

TINY = cases.Model("tiny", 64, 96, 4, 2, 64, 32, 101, block_size=16, dtype=torch.float32, device=DEVICE)
DRAWN = ("temperature", "top-k")  # torch's generator draws other tokens


def tiny_cases() -> Iterator[cases.Case]:
    for rows in (1, 5):
        yield from cases.elementwise(TINY, rows)
        yield from cases_attention.heads(TINY, rows)
        yield from cases.linear(TINY, rows)
        yield from cases_sampling.sampling(TINY, rows)
    yield cases_attention.decode(TINY, 3, 40)
    yield cases_attention.prefill(TINY, 2, 19)


CASES = list(tiny_cases())


@pytest.mark.parametrize("case", CASES, ids=[f"{case.op}, {case.label}" for case in CASES])
def test_torchs_counterpart_computes_the_same(case: cases.Case) -> None:
    assert case.moved > 0
    pair = case.make()
    ours, torchs = pair.ours(), pair.torchs()
    if case.label.startswith(DRAWN):
        assert ours.shape == torchs.shape
        return
    for y, expected in zip(*((x if isinstance(x, tuple) else (x,)) for x in (ours, torchs)), strict=True):
        if expected is not None:
            torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4, check_dtype=False)


def test_every_operator_has_cases_at_the_models_shapes() -> None:
    for model in (cases.QWEN3, cases.QWEN35):
        listed = list(ops.cases_of(model, quick=False))
        assert {case.op for case in listed} == {case.op for case in CASES}
        assert len({(case.op, case.label) for case in listed}) == len(listed)
        assert len(list(ops.cases_of(model, quick=True))) < len(listed)


def test_bytes_and_operations() -> None:
    by_name = {(case.op, case.label): case for case in ops.cases_of(cases.QWEN3, quick=False)}
    assert by_name["add", "16384 rows"].moved == 3 * 16384 * 1024 * 2
    head = by_name["linear", "1 rows, 151936 x 1024"]
    assert (head.moved, head.flops) == (2 * (151936 * 1024 + 151936 + 1024), 2 * 151936 * 1024)
    decode = by_name["decode_attention", "64 x 4096"]
    assert decode.moved == 2 * 2 * (64 * 4096 * 8 * 128 + 64 * 16 * 128)
    prefill = by_name["prefill_attention", "1 x 8192"]
    assert prefill.flops == 4 * 16 * 128 * 8192 * 8193 // 2


def test_the_table_and_its_csv(tmp_path: Path) -> None:
    limits = Ceilings(copy=4e12, matmul=8e14, empty=0.8)
    assert limits.floor(8_000_000, 0) == 2.0
    assert limits.floor(0, 0) == 0.8
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


@pytest.mark.parametrize("shape", tune_linear.SHAPES)
@pytest.mark.parametrize("rows", tune_linear.ROWS)
def test_the_layout_in_use_is_among_those_compared(rows: int, shape: str) -> None:
    out, dim = map(int, shape.split("x"))
    assert tune_linear.few_rows.few_rows_tiling(rows, dim, out, 2) in set(tune_linear.layouts(rows, out, dim))
