"""Compares tiles and splits of the attention operators with each other.

For each model and shape it prints the fastest. The constants in ``qvllm_triton/attention`` were chosen with it.
"""

import argparse
import itertools
from collections.abc import Iterator
from unittest import mock

from cases import QWEN3, QWEN35, Case, Model
from cases_attention import decode as decode_case
from cases_attention import prefill as prefill_case
from timing import number_of_inputs, time_calls
from triton.runtime.errors import OutOfResources

from qvllm_triton.attention import decode, prefill

DECODE_SHAPES = ((1, 512), (1, 4096), (1, 32768), (8, 1024), (64, 1024), (64, 4096), (256, 512), (256, 1024), (256, 4096))
PREFILL_SHAPES = ((16, 2048), (1, 8192))
Setting = tuple[str, dict[str, object]]


def decode_settings(model: Model, seqs: int, length: int) -> Iterator[Setting]:
    """The tile, and how finely sequences are split; the operator's own first."""
    yield "own", {}
    tiles = [(32, 4, 3), (32, 4, 4), (64, 4, 3), (64, 4, 4), (64, 8, 3), (128, 4, 3)]
    if model.head_dim == 256:
        tiles = [(16, 4, 4), (32, 4, 3), (32, 4, 4), (64, 4, 3), (64, 8, 3)]
    fan = decode.fan_of(model.q_heads // model.kv_heads, model.head_dim)
    # Twice as many programs as multiprocessors, three and four times as many.
    choices = {decode.splits_of(seqs, model.kv_heads, length, fan, 132 * times) for times in (1, 2, 3, 4)}
    for tile, splits in itertools.product(tiles, sorted(choices)):
        changes = {"tile_of": lambda *_, tile=tile: decode.Tile(*tile), "splits_of": lambda *_, splits=splits: splits}
        yield f"keys, warps, stages {tile}, {splits} splits", changes


def prefill_settings(model: Model) -> Iterator[Setting]:
    """The tile; the operator's own first."""
    yield "own", {}
    tiles = [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 4, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2)]
    if model.head_dim == 256:
        tiles = [(64, 32, 4, 3), (64, 64, 4, 2), (128, 32, 8, 3), (128, 64, 8, 2)]
    for tile in tiles:
        yield f"rows, keys, warps, stages {tile}", {"tile_of": lambda *_, tile=tile: prefill.Tile(*tile)}


def compare(title: str, case: Case, module: object, settings: list[Setting], replays: int, shown: int) -> None:
    """Time one case under every setting, and print the fastest."""
    pairs = [case.make() for _ in range(number_of_inputs(case.moved))]
    calls = [pair.ours for pair in pairs]
    found = []
    for name, changes in settings:
        with mock.patch.multiple(module, **changes):
            try:
                time = time_calls(calls, replays, case.moved / 4e6)
            except OutOfResources:
                continue
        found.append((time.median, name))
    found.sort()
    own = next(time for time, name in found if name == "own")
    rate = f"{case.flops / own / 1e6:.0f} TFLOP/s" if module is prefill else f"{case.moved / own / 1e6:.2f} TB/s"
    print(f"\n{title} {case.label}: own {own:.1f} us ({rate})", flush=True)
    for time, name in found[:shown]:
        print(f"  {time:9.1f} us  {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replays", type=int, default=7)
    parser.add_argument("--shown", type=int, default=3)
    parser.add_argument("--op", choices=("decode", "prefill"), action="append")
    arguments = parser.parse_args()
    ops = arguments.op or ["prefill", "decode"]
    for op, model in itertools.product(ops, (QWEN3, QWEN35)):
        for seqs, length in DECODE_SHAPES if op == "decode" else PREFILL_SHAPES:
            case = decode_case(model, seqs, length) if op == "decode" else prefill_case(model, seqs, length)
            settings = list(decode_settings(model, seqs, length) if op == "decode" else prefill_settings(model))
            module = decode if op == "decode" else prefill
            compare(f"{op} {model.name}", case, module, settings, arguments.replays, arguments.shown)


if __name__ == "__main__":
    main()
