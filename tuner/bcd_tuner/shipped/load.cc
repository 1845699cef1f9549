// Runs the compiled network in a folder. Needs the two runtime libraries of TVM and the headers of tvm_ffi:
//
//   TVM=$(python -c 'import tvm; print(tvm.__path__[0])')
//   FFI=$(python -c 'import tvm_ffi; print(tvm_ffi.__path__[0])')
//   g++ -std=c++17 -O2 load.cc -o load -I$FFI/include -Wl,--no-as-needed -L$TVM/lib -ltvm_runtime -L$FFI/lib -ltvm_ffi
//       -Wl,-rpath,$TVM/lib:$FFI/lib
//   ./load .
//
// The CPU is checked as far as the C++ compiler can ask for it; load.py verifies the digests of the files as well.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

constexpr int64_t kFormat = 1;
constexpr size_t kAlignment = 64;
constexpr int kPooled = 2;

struct HostMemory {
  void AllocData(DLTensor* tensor) {
    size_t bytes = (ffi::GetDataSize(*tensor) / kAlignment + 1) * kAlignment;
    tensor->data = std::aligned_alloc(kAlignment, bytes);
    std::memset(tensor->data, 0, bytes);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

ffi::json::Object ReadManifest(const std::string& folder) {
  std::ifstream file(folder + "/manifest.json");
  if (!file) throw std::runtime_error(folder + " is not a compiled network: no manifest.json can be read");
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  auto manifest = ffi::json::Parse(text).cast<ffi::json::Object>();
  if (manifest[ffi::String("format")].cast<int64_t>() != kFormat) {
    throw std::runtime_error(folder + "/manifest.json has another format than this reads");
  }
  return manifest;
}

void CheckCpu(const ffi::json::Object& manifest) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const std::map<std::string, bool> here = {
      {"sse4.2", __builtin_cpu_supports("sse4.2")},         {"avx", __builtin_cpu_supports("avx")},
      {"avx2", __builtin_cpu_supports("avx2")},             {"fma", __builtin_cpu_supports("fma")},
      {"bmi", __builtin_cpu_supports("bmi")},               {"bmi2", __builtin_cpu_supports("bmi2")},
      {"avx512f", __builtin_cpu_supports("avx512f")},       {"avx512bw", __builtin_cpu_supports("avx512bw")},
      {"avx512dq", __builtin_cpu_supports("avx512dq")},     {"avx512vl", __builtin_cpu_supports("avx512vl")},
      {"avx512cd", __builtin_cpu_supports("avx512cd")},     {"avx512vnni", __builtin_cpu_supports("avx512vnni")},
      {"avx512vbmi", __builtin_cpu_supports("avx512vbmi")},
  };
  for (const ffi::Any& item : manifest[ffi::String("isa")].cast<ffi::json::Array>()) {
    std::string name = item.cast<ffi::String>();
    auto known = here.find(name);
    if (known != here.end() && !known->second) {
      throw std::runtime_error("this CPU lacks " + name + ", which the network was compiled for");
    }
  }
#endif
}

// Zeros in the shape and dtype of each input; write your data to `data_ptr()`.
std::vector<ffi::Tensor> MakeInputs(const ffi::json::Object& manifest) {
  std::vector<ffi::Tensor> inputs;
  for (const ffi::Any& item : manifest[ffi::String("inputs")].cast<ffi::json::Array>()) {
    auto input = item.cast<ffi::json::Object>();
    std::vector<int64_t> shape;
    for (const ffi::Any& dim : input[ffi::String("shape")].cast<ffi::json::Array>()) shape.push_back(dim.cast<int64_t>());
    DLDataType dtype = ffi::StringToDLDataType(input[ffi::String("dtype")].cast<ffi::String>());
    inputs.push_back(ffi::Tensor::FromNDAlloc(HostMemory(), ffi::ShapeView(shape.data(), shape.size()), dtype, {kDLCPU, 0}));
  }
  return inputs;
}

ffi::Function LoadMain(const std::string& folder, const ffi::json::Object& manifest) {
  setenv("TVM_NUM_THREADS", std::to_string(manifest[ffi::String("threads")].cast<int64_t>()).c_str(), 0);
  std::string library = manifest[ffi::String("library")].cast<ffi::String>();
  int kept = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY);
  dup2(nowhere, STDERR_FILENO);  // TVM 0.27 warns of each weight that it loads
  ffi::Module code = ffi::Module::LoadFromFile(folder + "/" + library);
  dup2(kept, STDERR_FILENO);
  close(kept);
  close(nowhere);
  auto machine = code->GetFunction("vm_load_executable", true).value()().cast<ffi::Module>();
  machine->GetFunction("vm_initialization", true).value()(static_cast<int>(kDLCPU), 0, kPooled);
  return machine->GetFunction("main", true).value();
}

void Print(const ffi::Tensor& output) {
  std::cout << ffi::DLDataTypeToString(output.dtype());
  for (int64_t dim : output.shape()) std::cout << " " << dim;
  if (output.dtype().code == kDLFloat && output.dtype().bits == 32 && output.numel() > 0) {
    std::cout << " first " << static_cast<const float*>(output.data_ptr())[0];
  }
  std::cout << "\n";
}

int main(int argc, char** argv) try {
  std::string folder = argc > 1 ? argv[1] : ".";
  ffi::json::Object manifest = ReadManifest(folder);
  CheckCpu(manifest);
  std::vector<ffi::Tensor> inputs = MakeInputs(manifest);
  ffi::Function network = LoadMain(folder, manifest);
  std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
  ffi::Any result;
  network.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
  if (auto single = result.as<ffi::Tensor>()) {
    Print(*single);
  } else {
    for (const ffi::Any& output : result.cast<ffi::Array<ffi::Any>>()) Print(output.cast<ffi::Tensor>());
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
