# Finds torch's headers and libtorch.so beside the Python that runs the build. find_package(Torch) is avoided: it wants
# every CUDA library that torch itself was built with, and only the stable ABI is used here.
find_package(Python REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')"
  OUTPUT_VARIABLE QVLLM_TORCH RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR QVLLM_TORCH STREQUAL "")
  message(FATAL_ERROR "qvllm-kernels needs torch 2.11 or newer at build time: ${Python_EXECUTABLE} has none (pip install torch).")
endif()
set(QVLLM_TORCH_INCLUDE "${QVLLM_TORCH}/include")
set(QVLLM_TORCH_LIBRARY "${QVLLM_TORCH}/lib/libtorch.so")
if(NOT EXISTS "${QVLLM_TORCH_INCLUDE}/torch/csrc/stable/library.h" OR NOT EXISTS "${QVLLM_TORCH_LIBRARY}")
  message(FATAL_ERROR "qvllm-kernels needs torch 2.11 or newer at build time: ${QVLLM_TORCH} lacks the stable ABI headers.")
endif()
