# Sets TORCH_LIBRARIES to Debian's libtorch-dev, or to what GOSSIPD_TORCH_DIR names, and
# GOSSIPD_C10D_DEFINITIONS and GOSSIPD_C10D_OPTIONS, which compile
# models/devices/device_group.cpp, to what is usable of c10d.
#
# LibTorch's own CMake package for CUDA asks for a CUDA toolkit with its compiler, although linking
# LibTorch needs no toolkit and running it needs only a driver. So a wheel is linked by its files.

# gossipd_find_c10d(<include folder>…): the headers of LibTorch's backends include those of Gloo,
# of NCCL and of CUDA's runtime. NVIDIA's wheels bring the last two. No wheel brings Gloo's, but
# only pointers to its types are used, so Debian's headers do for any LibTorch.
include(CheckCXXSourceCompiles)
macro(gossipd_find_c10d)
  set(GOSSIPD_C10D_OPTIONS ${ARGN})
  list(TRANSFORM GOSSIPD_C10D_OPTIONS PREPEND -isystem)  # warnings there are not ours
  set(CMAKE_REQUIRED_LIBRARIES ${TORCH_LIBRARIES})
  set(CMAKE_REQUIRED_INCLUDES ${ARGN})
  set(CMAKE_REQUIRED_DEFINITIONS -DUSE_C10D_GLOO)
  check_cxx_source_compiles("#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
    int main() {
      return c10d::ProcessGroupGloo::createDeviceForHostname(\"127.0.0.1\") == nullptr;
    }" GOSSIPD_C10D_GLOO)
  set(CMAKE_REQUIRED_DEFINITIONS -DUSE_C10D_NCCL)
  check_cxx_source_compiles("#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
    int main() { return c10d::ProcessGroupNCCL::Options::create() == nullptr; }" GOSSIPD_C10D_NCCL)
  foreach(backend GLOO NCCL)
    if(GOSSIPD_C10D_${backend})
      list(APPEND GOSSIPD_C10D_DEFINITIONS USE_C10D_${backend})
    endif()
  endforeach()
  unset(CMAKE_REQUIRED_LIBRARIES)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_DEFINITIONS)
endmacro()

if(NOT GOSSIPD_TORCH_DIR)
  find_package(Torch REQUIRED)
  gossipd_find_c10d()
  return()
endif()

set(torch_lib ${GOSSIPD_TORCH_DIR}/lib)
foreach(wanted include/torch/csrc/api/include/torch/torch.h
    lib/libtorch.so lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS ${GOSSIPD_TORCH_DIR}/${wanted})
    message(FATAL_ERROR "GOSSIPD_TORCH_DIR: ${GOSSIPD_TORCH_DIR} has no ${wanted}; "
      "it must be the folder torch of an installed wheel "
      "(pip install --target DIR torch: DIR/torch), or an unpacked libtorch")
  endif()
endforeach()

add_library(gossipd_torch INTERFACE IMPORTED)
target_include_directories(gossipd_torch SYSTEM INTERFACE
  ${GOSSIPD_TORCH_DIR}/include ${GOSSIPD_TORCH_DIR}/include/torch/csrc/api/include)
# The compiler's own library first: wheels export parts of another one (all of std::filesystem in
# 2.11), which end in a jump to address 0 when they are taken for ours.
target_link_libraries(gossipd_torch INTERFACE -Wl,--push-state,--no-as-needed,-lstdc++,--pop-state
  ${torch_lib}/libtorch.so ${torch_lib}/libtorch_cpu.so ${torch_lib}/libc10.so)
if(EXISTS ${torch_lib}/libtorch_cuda.so)
  # Nothing in it is called by name: it registers its kernels when it is loaded.
  target_link_libraries(gossipd_torch INTERFACE -Wl,--push-state,--no-as-needed
    ${torch_lib}/libtorch_cuda.so ${torch_lib}/libc10_cuda.so -Wl,--pop-state)
endif()
# NVIDIA's libraries are separate wheels beside torch. libtorch finds them itself; the linker must
# be told where they are.
file(GLOB nvidia_libs ${GOSSIPD_TORCH_DIR}/../nvidia/*/lib)
foreach(folder ${nvidia_libs})
  target_link_options(gossipd_torch INTERFACE -Wl,-rpath-link,${folder})
endforeach()
set(TORCH_LIBRARIES gossipd_torch)
file(GLOB nvidia_includes ${GOSSIPD_TORCH_DIR}/../nvidia/*/include)
gossipd_find_c10d(${nvidia_includes})
message(STATUS "LibTorch: ${GOSSIPD_TORCH_DIR}")
