"""Says whether the operators can run on a device, and if not, why and what to do."""

import torch
import triton

# Triton decides at decoration whether a kernel is compiled or interpreted: setting the variable later changes nothing.
INTERPRETED: bool = triton.knobs.runtime.interpret


def unavailable_reason(device: torch.device) -> str | None:
    """None if the operators run on ``device`` here and now, else one sentence that says why not and what to do."""
    device = torch.device(device)
    if device.type == "cpu":
        if INTERPRETED:
            return None
        return "qvllm_triton runs on a CPU only in Triton's interpreter; set TRITON_INTERPRET=1 before the first import."
    if device.type != "cuda":
        return f"qvllm_triton runs on CUDA devices, not on {device.type!r}; choose a GPU or another backend."
    if INTERPRETED:
        return "TRITON_INTERPRET=1 replaces the GPU kernels by Triton's slow interpreter; unset it to use the GPU."
    if not torch.cuda.is_available():
        return "torch finds no CUDA GPU; install a CUDA build of torch and check that nvidia-smi lists a GPU."
    if device.index is not None and device.index >= torch.cuda.device_count():
        return f"there is no {device}: torch sees {torch.cuda.device_count()} GPU(s); choose a smaller index."
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        found = ".".join(map(str, capability))
        return f"{torch.cuda.get_device_name(device)} has compute capability {found}; qvllm_triton needs 8.0 or newer."
    return None
