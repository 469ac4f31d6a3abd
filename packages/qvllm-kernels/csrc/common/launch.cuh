// Launches that overlap their start with the end of the previous kernel (programmatic dependent launch, Hopper and later).
#pragma once
#include <cuda_runtime.h>

namespace qvllm {

// Returns once all earlier work of the stream is complete and visible. Every kernel started by `launch` calls it in every
// thread, before it touches global memory: it may have been started while the kernel before it was still running, and so
// may the next one, since this is also where the next one is allowed to start. Weights too are read after it, because
// an earlier kernel may have written them.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

// Launches on the current device. Before Hopper the attribute is left out, and the launch is an ordinary one. `shared_bytes` is
// the dynamic shared memory of a block.
template <typename Arguments>
cudaError_t launch(void (*kernel)(Arguments), dim3 blocks, unsigned threads, cudaStream_t stream, const Arguments& arguments,
                   unsigned shared_bytes = 0) {
  int device = 0, major = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device); error != cudaSuccess)
    return error;
  if (shared_bytes > 48 << 10) {  // more than a kernel may have without asking
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments);
}

}  // namespace qvllm
