"""Times the operators that only move memory against the floor of their bytes, and against torch.

``python benchmarks/ops.py`` prints a table: microseconds, how much of the floor's speed that is, and torch's time. The floor
comes from the bandwidth and the empty kernel measured in the same run.
"""

import argparse
import csv
import fnmatch
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from cases import MODELS, Case, Model, elementwise
from cases_heads import heads
from timing import Ceilings, Timing, ceilings, number_of_inputs, time_calls

ROWS, QUICK_ROWS = (1, 16, 128, 16_384), (1, 16_384)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    model: str
    case: Case
    ours: Timing
    torchs: Timing | None
    floor: float

    def fields(self) -> dict[str, str | float]:
        """The line as it is written to the CSV file."""
        return {
            "model": self.model,
            "op": self.case.op,
            "case": self.case.label,
            "us": self.ours.median,
            "us_low": self.ours.low,
            "us_high": self.ours.high,
            "floor_us": self.floor,
            "torch_us": self.torchs.median if self.torchs else float("nan"),
            "bytes": self.case.moved,
        }

    def __str__(self) -> str:
        torchs = (
            f"{self.torchs.median:9.2f} {self.torchs.median / self.ours.median:6.2f}" if self.torchs else f"{'-':>9} {'-':>6}"
        )
        return (
            f"{self.case.op:19} {self.case.label:12} {self.ours.median:9.2f} {self.floor / self.ours.median:6.0%} "
            f"{torchs} {self.case.moved / self.ours.median / 1e6:6.2f}"
        )


HEADER = f"{'operator':19} {'case':12} {'us':>9} {'floor':>6} {'torch us':>9} {'faster':>6} {'TB/s':>6}"


def cases_of(model: Model, quick: bool) -> Iterator[Case]:
    """Every case of a model, in the order of the table."""
    for rows in QUICK_ROWS if quick else ROWS:
        yield from elementwise(model, rows)
        yield from heads(model, rows)


def measure(model: Model, case: Case, limits: Ceilings, replays: int) -> Row:
    """Time both sides of one case on the same inputs."""
    floor = limits.floor(case.moved)
    pairs = [case.make() for _ in range(number_of_inputs(case.moved))]
    ours = time_calls([pair.ours for pair in pairs], replays, floor)
    try:
        torchs = time_calls([pair.torchs for pair in pairs], replays, floor)
    except RuntimeError as error:  # out of memory, or torch cannot capture it
        print(f"torch, {case.op}, {case.label}: {error}")
        torchs = None
    return Row(model.name, case, ours, torchs, floor)


def write_csv(path: Path, rows: list[Row], device: str, limits: Ceilings) -> None:
    """All figures of a run, with the device, the versions and the ceilings in every line."""
    run = {"device": device, "torch": torch.__version__}
    run |= {"copy_bytes_per_s": limits.copy, "empty_us": limits.empty}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0].fields(), *run])
        writer.writeheader()
        writer.writerows({**row.fields(), **run} for row in rows)


def write_plot(path: Path, rows: list[Row]) -> None:
    """How close each case comes to its floor, one panel per operator. Needs matplotlib."""
    import matplotlib.pyplot as plt

    panels = {name: [row for row in rows if row.case.op == name] for name in dict.fromkeys(row.case.op for row in rows)}
    heights = [len(panel) + 3 for panel in panels.values()]
    size = (10, sum(heights) / 6)
    figure, axes = plt.subplots(len(panels), 1, height_ratios=heights, figsize=size, squeeze=False, layout="constrained")
    for axis, (name, panel) in zip(axes.flat, panels.items(), strict=True):
        labels = [f"{row.model}, {row.case.label}" for row in panel]
        axis.barh(labels, [100 * row.floor / row.ours.median for row in panel], label="qvllm-kernels")
        torchs = [100 * row.floor / row.torchs.median if row.torchs else float("nan") for row in panel]
        axis.scatter(torchs, labels, marker="|", s=80, color="black", label="torch")
        axis.set(title=f"{name}, % of the floor's speed", xlim=(0, 105))
        axis.invert_yaxis()
        axis.tick_params(labelsize=7)
    axes.flat[0].legend(fontsize=7)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Run as the command line says; 1 if an operator failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ops", default="*", help="comma-separated names or patterns, such as 'add,*norm*'; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and replays")
    parser.add_argument("--csv", type=Path, help="write all figures there")
    parser.add_argument("--plot", type=Path, help="draw them there (needs matplotlib)")
    args = parser.parse_args()
    replays, patterns, device = 7 if args.quick else 21, args.ops.split(","), torch.cuda.get_device_name()
    torch.manual_seed(0)
    limits = ceilings(replays)
    print(f"{device}, torch {torch.__version__}")
    print(f"copy {limits.copy / 1e12:.2f} TB/s, empty kernel {limits.empty:.2f} us")
    rows, failed = [], 0
    for model in MODELS:
        print(f"\n{model.name}\n{HEADER}")
        for case in cases_of(model, args.quick):
            if not any(fnmatch.fnmatch(case.op, pattern) for pattern in patterns):
                continue
            try:
                rows.append(measure(model, case, limits, replays))
                print(rows[-1], flush=True)
            except Exception:  # the others are still worth their time
                failed += 1
                print(f"FAILED: {case.op}, {case.label}\n{traceback.format_exc(limit=-3)}", flush=True)
    if args.csv and rows:
        write_csv(args.csv, rows, device, limits)
    if args.plot and rows:
        write_plot(args.plot, rows)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
