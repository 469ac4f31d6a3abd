"""Says whether the operators can run on a device, and if not, why and what to do."""

import re
from collections.abc import Sequence

import torch

from qvllm_kernels import library


def covers(architectures: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether code compiled for ``architectures`` runs on a GPU of this compute capability.

    Machine code runs on its own minor version and later ones of the same major version, code with the suffix "a" on its
    own version only. "+PTX" also runs on everything newer, unless it has the suffix.

    Args:
        architectures: entries as ``TORCH_CUDA_ARCH_LIST`` has them, such as "8.0", "9.0a" or "8.6+PTX".
        capability: (major, minor).
    """
    for entry in architectures:
        match = re.fullmatch(r"(\d+)\.(\d)(a?)(\+PTX)?", entry)
        if match is None:
            raise ValueError(f"cannot read the architecture {entry!r}")
        compiled, exact, ptx = (int(match[1]), int(match[2])), bool(match[3]), bool(match[4])
        if capability == compiled or (not exact and capability > compiled and (ptx or capability[0] == compiled[0])):
            return True
    return False


def unavailable_reason(device: torch.device) -> str | None:
    """None if the operators run on ``device`` here and now, else one sentence that says why not and what to do."""
    if library.LOAD_ERROR is not None:
        return f"qvllm_kernels: {library.LOAD_ERROR}."
    device = torch.device(device)
    if device.type != "cuda":
        return f"qvllm_kernels runs on CUDA devices only, not on {device.type!r}; choose a GPU or another backend."
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch (https://pytorch.org)."
    if not torch.cuda.is_available():
        return "torch finds no CUDA GPU; check that nvidia-smi lists one and that CUDA_VISIBLE_DEVICES does not hide it."
    if device.index is not None and device.index >= torch.cuda.device_count():
        return f"there is no {device}: torch sees {torch.cuda.device_count()} GPU(s); choose a smaller index."
    capability = torch.cuda.get_device_capability(device)
    if not covers(library.ARCHITECTURES, capability):
        wanted = ".".join(map(str, capability))
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability {wanted}, but this build of qvllm-kernels is for "
            f"{', '.join(library.ARCHITECTURES)}; rebuild it with TORCH_CUDA_ARCH_LIST={wanted}."
        )
    return None
