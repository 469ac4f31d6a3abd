"""Run the conformance suite against a backend, and say per operator how far it is from its float64 reference.

Exit status: 0 if nothing failed and no required operator is missing, 1 otherwise, 2 if the backend cannot be run here.
"""

import argparse
import sys
import time

import torch

from qvllm_engine.backends.registry import REQUIRED_OPS, load_backend
from qvllm_engine.errors import BackendError
from qvllm_engine.testing.suite import OPS, Report, check_backend

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m qvllm_engine.testing", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", required=True, help="name in the entry-point group qvllm.backends")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ops", help="comma-separated operators; all by default")
    parser.add_argument("--dtype", choices=DTYPES, help="float32 on cpu and bfloat16 on cuda by default")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    parser.add_argument("--partial", action="store_true", help="missing operators are listed but do not fail")
    args = parser.parse_args(argv)
    args.ops = args.ops.split(",") if args.ops else None
    if unknown := sorted(set(args.ops or ()) - set(OPS)):
        parser.error(f"unknown operators {', '.join(unknown)}; choose from {', '.join(OPS)}")
    args.dtype = DTYPES[args.dtype or ("bfloat16" if args.device == "cuda" else "float32")]
    return args


def _line(report: Report) -> str:
    if report.status == "missing":
        return f"{report.op:32}  missing"
    numbers = f"{report.cases:3} cases  worst {report.worst:8.2e}  bound {report.bound:.1e}"
    problems = "".join(f"\n    {problem}" for problem in report.problems)
    return f"{report.op:32}  {numbers}  {report.status}{problems}"


def main(argv: list[str] | None = None) -> int:
    """Run the suite as the command line says; returns the exit status."""
    args = _arguments(argv)
    device = torch.device(args.device)
    try:
        backend = load_backend(args.backend, device, args.dtype)
    except BackendError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"backend {args.backend} on {args.device}, {str(args.dtype).removeprefix('torch.')}, seed {args.seed}")
    start = time.perf_counter()
    reports = check_backend(
        backend.module, device, args.dtype, args.seed, args.ops, announce=lambda report: print(_line(report), flush=True)
    )
    failed = [report.op for report in reports if report.status == "FAILED"]
    missing = [report.op for report in reports if report.status == "missing"]
    count, seconds = sum(report.cases for report in reports), time.perf_counter() - start
    print(f"{count} cases in {seconds:.1f} s: {len(failed)} operators failed, {len(missing)} missing")
    if failed:
        print(f"failed: {', '.join(failed)}")
    missing_required = [op for op in missing if op in REQUIRED_OPS]
    return 1 if failed or (missing_required and not args.partial) else 0


if __name__ == "__main__":
    sys.exit(main())
