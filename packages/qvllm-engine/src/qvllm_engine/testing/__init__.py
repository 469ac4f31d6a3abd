"""The conformance suite of the operator contract, for any backend: ``python -m qvllm_engine.testing --backend NAME``."""

from qvllm_engine.testing.case import Case
from qvllm_engine.testing.suite import OPS, Report, check_backend, check_function, conformance_cases, implementations
from qvllm_engine.testing.trial import Output, Trial, Verdict, Written, run_trial, worst_row_error

__all__ = [
    "OPS",
    "conformance_cases",
    "check_backend",
    "check_function",
    "implementations",
    "Case",
    "Report",
    "Trial",
    "Output",
    "Written",
    "Verdict",
    "run_trial",
    "worst_row_error",
]
