// x + y.
#include "activation/two_inputs.cuh"

namespace qvllm {
namespace {

struct Add {
  __device__ float operator()(float x, float y) const { return x + y; }
};

}  // namespace

cudaError_t launch_add(const TwoInputsArguments& a, cudaStream_t stream) { return launch_two_inputs<Add>(a, stream); }

}  // namespace qvllm
