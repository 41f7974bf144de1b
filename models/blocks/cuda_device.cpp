#include "models/blocks/cuda_device.h"

#include <dlfcn.h>

#include <functional>
#include <initializer_list>
#include <vector>

extern const char* const gossipd_block_kernels_text;  // made of this folder's files

namespace gossipd::blocks {
namespace {

constexpr u32 warps_a_group = 4;  // as in warp.inc
constexpr int out_of_memory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
constexpr int major_attribute = 75, minor_attribute = 76;
constexpr unsigned non_blocking = 1;  // no order between this stream and the default one

// One of the two libraries, and what it says of an error.
class Library {
 public:
  explicit Library(std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (handle_ == nullptr) handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr)
      throw DeviceError(std::string(*names.begin()) + " cannot be loaded: " + dlerror());
  }
  template <typename Call>
  void find(const char* name, Call& call) const {
    call = reinterpret_cast<Call>(dlsym(handle_, name));
    if (call == nullptr) throw DeviceError(std::string(name) + " is missing: " + dlerror());
  }

 private:
  void* handle_ = nullptr;  // kept for the process
};

// As cuda.h declares them; 0 is success.
struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*device)(int* out, int number) = nullptr;
  int (*device_name)(char* out, int size, int device) = nullptr;
  int (*attribute)(int* out, int attribute, int device) = nullptr;
  int (*retain)(void** context, int device) = nullptr;
  int (*give_back)(int device) = nullptr;
  int (*set_context)(void* context) = nullptr;
  int (*load)(void** module, const void* image) = nullptr;
  int (*unload)(void* module) = nullptr;
  int (*function)(void** out, void* module, const char* name) = nullptr;
  int (*make_stream)(void** out, unsigned flags) = nullptr;
  int (*end_stream)(void* stream) = nullptr;
  int (*synchronize)(void* stream) = nullptr;
  int (*allocate)(u64* out, std::size_t bytes) = nullptr;
  int (*release)(u64 address) = nullptr;
  int (*allocate_host)(void** out, std::size_t bytes, unsigned flags) = nullptr;
  int (*release_host)(void* memory) = nullptr;
  int (*fill)(u64 address, u8 value, std::size_t bytes, void* stream) = nullptr;
  int (*upload)(u64 to, const void* from, std::size_t bytes, void* stream) = nullptr;
  int (*download)(void* to, u64 from, std::size_t bytes, void* stream) = nullptr;
  int (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                unsigned shared, void* stream, void** arguments, void** extra) = nullptr;
  int (*error_text)(int error, const char** out) = nullptr;

  Driver() {
    const Library cuda({"libcuda.so.1", "libcuda.so"});
    cuda.find("cuInit", init);
    cuda.find("cuDeviceGet", device);
    cuda.find("cuDeviceGetName", device_name);
    cuda.find("cuDeviceGetAttribute", attribute);
    cuda.find("cuDevicePrimaryCtxRetain", retain);
    cuda.find("cuDevicePrimaryCtxRelease_v2", give_back);
    cuda.find("cuCtxSetCurrent", set_context);
    cuda.find("cuModuleLoadData", load);
    cuda.find("cuModuleUnload", unload);
    cuda.find("cuModuleGetFunction", function);
    cuda.find("cuStreamCreate", make_stream);
    cuda.find("cuStreamDestroy_v2", end_stream);
    cuda.find("cuStreamSynchronize", synchronize);
    cuda.find("cuMemAlloc_v2", allocate);
    cuda.find("cuMemFree_v2", release);
    cuda.find("cuMemHostAlloc", allocate_host);
    cuda.find("cuMemFreeHost", release_host);
    cuda.find("cuMemsetD8Async", fill);
    cuda.find("cuMemcpyHtoDAsync_v2", upload);
    cuda.find("cuMemcpyDtoHAsync_v2", download);
    cuda.find("cuLaunchKernel", launch);
    cuda.find("cuGetErrorString", error_text);
  }
};

// As nvrtc.h declares them.
struct Compiler {
  int (*create)(void** program, const char* text, const char* name, int, const char* const*,
                const char* const*) = nullptr;
  int (*compile)(void* program, int count, const char* const* options) = nullptr;
  int (*destroy)(void** program) = nullptr;
  int (*log_size)(void* program, std::size_t* out) = nullptr;
  int (*log)(void* program, char* out) = nullptr;
  int (*code_size)(void* program, std::size_t* out) = nullptr;
  int (*code)(void* program, char* out) = nullptr;
  const char* (*error_text)(int error) = nullptr;

  Compiler() {
    const Library nvrtc({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"});
    nvrtc.find("nvrtcCreateProgram", create);
    nvrtc.find("nvrtcCompileProgram", compile);
    nvrtc.find("nvrtcDestroyProgram", destroy);
    nvrtc.find("nvrtcGetProgramLogSize", log_size);
    nvrtc.find("nvrtcGetProgramLog", log);
    nvrtc.find("nvrtcGetCUBINSize", code_size);
    nvrtc.find("nvrtcGetCUBIN", code);
    nvrtc.find("nvrtcGetErrorString", error_text);
  }
};

// The kernels for a GPU of this kind ("sm_90").
std::vector<char> compile(const std::string& kind) {
  const Compiler compiler;
  void* program = nullptr;
  const auto check = [&](int error, const char* what) {
    if (error != 0)
      throw DeviceError(std::string("NVRTC: ") + what + ": " + compiler.error_text(error));
  };
  check(compiler.create(&program, gossipd_block_kernels_text, "blocks.cu", 0, nullptr, nullptr),
        "creating a program");
  const std::unique_ptr<void, std::function<void(void*)>> owner(
      program, [&](void* made) { compiler.destroy(&made); });
  const std::string architecture = "--gpu-architecture=" + kind;
  // Each operation rounds by itself, as on every other machine.
  const std::array options = {architecture.c_str(), "--std=c++17",     "--fmad=false",
                              "--ftz=false",        "--prec-div=true", "--prec-sqrt=true"};
  std::size_t size = 0;
  if (const int error = compiler.compile(program, options.size(), options.data())) {
    compiler.log_size(program, &size);
    std::string log(size, '\0');
    compiler.log(program, log.data());
    throw DeviceError("NVRTC cannot compile the kernels for " + kind + ": " +
                      compiler.error_text(error) + "\n" + log.c_str());
  }
  check(compiler.code_size(program, &size), "the size of the code");
  std::vector<char> code(size);
  check(compiler.code(program, code.data()), "the code");
  return code;
}

}  // namespace

struct CudaDevice::State {
  Driver driver;
  int device = 0;
  void* context = nullptr;
  void* module = nullptr;
  void* stream = nullptr;
  std::array<void*, kernel_names.size()> functions{};

  void check(int error, const char* what) const {
    if (error == 0) return;
    const char* text = "unknown error";
    (void)driver.error_text(error, &text);
    const std::string all = std::string("CUDA: ") + what + ": " + text;
    if (error == out_of_memory) throw DeviceMemoryError(all);
    throw DeviceError(all);
  }
  void enter() const { check(driver.set_context(context), "entering the context"); }

  explicit State(int number) {
    check(driver.init(0), "starting");
    check(driver.device(&device, number), "finding the device");
    check(driver.retain(&context, device), "making a context");
    try {
      int major = 0, minor = 0;
      enter();
      check(driver.attribute(&major, major_attribute, device), "its compute capability");
      check(driver.attribute(&minor, minor_attribute, device), "its compute capability");
      const auto code = compile("sm_" + std::to_string(10 * major + minor));
      check(driver.load(&module, code.data()), "loading the kernels");
      for (std::size_t k = 0; k < functions.size(); ++k)
        check(driver.function(&functions[k], module, kernel_names[k]), kernel_names[k]);
      check(driver.make_stream(&stream, non_blocking), "making a stream");
    } catch (...) {
      end();
      throw;
    }
  }
  ~State() { end(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void end() noexcept {
    if (driver.set_context(context) == 0) {
      if (stream != nullptr) (void)driver.end_stream(stream);
      if (module != nullptr) (void)driver.unload(module);
    }
    (void)driver.give_back(device);
  }
};

CudaDevice::CudaDevice(int number) : state_(std::make_unique<State>(number)) {}
CudaDevice::~CudaDevice() = default;

std::string CudaDevice::name() const {
  char text[256] = {};
  state_->check(state_->driver.device_name(text, sizeof text, state_->device), "its name");
  return text;
}

u64 CudaDevice::allocate(std::size_t bytes) {
  u64 address = 0;
  state_->enter();
  state_->check(state_->driver.allocate(&address, bytes),
                (std::to_string(bytes) + " bytes").c_str());
  return address;
}

void CudaDevice::release(u64 address) noexcept {
  if (state_->driver.set_context(state_->context) == 0) (void)state_->driver.release(address);
}

void* CudaDevice::allocate_host(std::size_t bytes) {
  void* memory = nullptr;
  state_->enter();
  state_->check(state_->driver.allocate_host(&memory, bytes, 0),
                (std::to_string(bytes) + " locked bytes of the host").c_str());
  return memory;
}

void CudaDevice::release_host(void* memory) noexcept {
  if (state_->driver.set_context(state_->context) == 0) (void)state_->driver.release_host(memory);
}

void CudaDevice::fill(u64 address, u8 value, std::size_t bytes) {
  state_->enter();
  state_->check(state_->driver.fill(address, value, bytes, state_->stream), "filling memory");
}

void CudaDevice::upload(u64 to, const void* from, std::size_t bytes) {
  state_->enter();
  state_->check(state_->driver.upload(to, from, bytes, state_->stream), "copying to the device");
}

void CudaDevice::download(void* to, u64 from, std::size_t bytes) {
  state_->enter();
  state_->check(state_->driver.download(to, from, bytes, state_->stream),
                "copying from the device");
  finish();
}

void CudaDevice::launch(Kernel kernel, const Arguments& arguments) {
  state_->enter();
  Arguments given = arguments;
  void* list[] = {&given};
  const unsigned groups = (arguments.warps + warps_a_group - 1) / warps_a_group;
  const auto k = static_cast<std::size_t>(kernel);
  state_->check(state_->driver.launch(state_->functions[k], groups, 1, 1, 32 * warps_a_group, 1, 1,
                                      0, state_->stream, list, nullptr),
                kernel_names[k]);
}

void CudaDevice::finish() {
  state_->enter();
  state_->check(state_->driver.synchronize(state_->stream), "waiting for the device");
}

}  // namespace gossipd::blocks
