# TORCH_LIBRARIES: Debian's libtorch-dev, or what GOSSIPD_TORCH_DIR names.
#
# LibTorch's own CMake package for CUDA asks for a CUDA toolkit with its compiler, though whoever links LibTorch needs
# none of it: a driver is enough to run. A wheel is therefore linked by its files.
if(NOT GOSSIPD_TORCH_DIR)
  find_package(Torch REQUIRED)
  return()
endif()

set(torch_lib ${GOSSIPD_TORCH_DIR}/lib)
foreach(wanted include/torch/csrc/api/include/torch/torch.h lib/libtorch.so lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS ${GOSSIPD_TORCH_DIR}/${wanted})
    message(FATAL_ERROR "GOSSIPD_TORCH_DIR: ${GOSSIPD_TORCH_DIR} has no ${wanted}; "
                        "it must be the folder torch of an installed wheel (pip install --target DIR torch: DIR/torch), or an unpacked libtorch")
  endif()
endforeach()

add_library(gossipd_torch INTERFACE IMPORTED)
target_include_directories(gossipd_torch SYSTEM INTERFACE
  ${GOSSIPD_TORCH_DIR}/include ${GOSSIPD_TORCH_DIR}/include/torch/csrc/api/include)
target_link_libraries(gossipd_torch INTERFACE ${torch_lib}/libtorch.so ${torch_lib}/libtorch_cpu.so ${torch_lib}/libc10.so)
if(EXISTS ${torch_lib}/libtorch_cuda.so)
  # Nothing of it is called by name: it registers its kernels when it is loaded.
  target_link_libraries(gossipd_torch INTERFACE -Wl,--push-state,--no-as-needed ${torch_lib}/libtorch_cuda.so ${torch_lib}/libc10_cuda.so -Wl,--pop-state)
endif()
# NVIDIA's libraries are wheels of their own beside torch; libtorch finds them by itself, the linker has to be told.
file(GLOB nvidia_libs ${GOSSIPD_TORCH_DIR}/../nvidia/*/lib)
foreach(folder ${nvidia_libs})
  target_link_options(gossipd_torch INTERFACE -Wl,-rpath-link,${folder})
endforeach()
set(TORCH_LIBRARIES gossipd_torch)
message(STATUS "LibTorch: ${GOSSIPD_TORCH_DIR}")
