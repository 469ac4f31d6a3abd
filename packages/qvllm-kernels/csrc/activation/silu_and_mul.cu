// SwiGLU's product: silu(gate) * up. x is the gate, y is up.
#include "activation/two_inputs.cuh"
#include "common/sigmoid.cuh"

namespace qvllm {
namespace {

struct SiluAndMul {
  __device__ float operator()(float gate, float up) const { return silu(gate) * up; }
};

}  // namespace

cudaError_t launch_silu_and_mul(const TwoInputsArguments& a, cudaStream_t stream) {
  return launch_two_inputs<SiluAndMul>(a, stream);
}

}  // namespace qvllm
