# The CUDA runtime: a library of its own, with its tests and benchmark, linked into levin where a
# compiler for it is found. Included at the end of the top-level CMakeLists.txt, when all rooms
# exist. With LEVIN_CUDA=OFF nothing of it is built.
set(LEVIN_CUDA AUTO CACHE STRING "Build the CUDA runtime: ON, OFF or AUTO (where nvcc is found)")
set_property(CACHE LEVIN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(LEVIN_CUDA_ARCHITECTURES 80-virtual 90a-real 90-virtual CACHE STRING
  "Machine code for Hopper; PTX for earlier (8.x) and later GPUs, on which it has never run")

# Rooms and tests take every .cpp below their folder; those of this runtime belong to it alone.
function(levin_without_cuda target)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "/cuda/|/cuda_[^/]*$")
  set_property(TARGET ${target} PROPERTY SOURCES ${sources})
endfunction()
levin_without_cuda(levin_runtime)
levin_without_cuda(test_runtime)

set(levin_cuda_found FALSE)
string(TOUPPER "${LEVIN_CUDA}" levin_cuda_wanted)
if(NOT levin_cuda_wanted MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "LEVIN_CUDA is ON, OFF or AUTO, not ${LEVIN_CUDA}")
endif()
if(NOT levin_cuda_wanted STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  find_package(CUDAToolkit 12.4)
  if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND)
    set(levin_cuda_found TRUE)
    message(STATUS "CUDA runtime: built with CUDA ${CUDAToolkit_VERSION} (-DLEVIN_CUDA=OFF leaves it "
      "out)")
  elseif(levin_cuda_wanted STREQUAL "ON")
    message(FATAL_ERROR "LEVIN_CUDA=ON, but there is no CUDA compiler of version 12.4 or later: put "
      "its nvcc on the PATH or set CMAKE_CUDA_COMPILER")
  else()
    message(STATUS "CUDA runtime: left out, no CUDA toolkit of version 12.4 or later")
  endif()
endif()

if(levin_cuda_found)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${LEVIN_CUDA_ARCHITECTURES})
  endif()
  get_property(levin_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(NOT CUDA IN_LIST levin_languages)
    enable_language(CUDA)
  endif()
  if(LEVIN_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${LEVIN_CCACHE})
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # linked by name below, so that every link sees it

  # Apart from the rest because nvcc does not take the host compiler's options.
  file(GLOB levin_cuda_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/runtime/cuda/*.cu)
  add_library(levin_cuda_kernels OBJECT ${levin_cuda_kernels})
  # CMake 3.25 does not know how to ask this nvcc for C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set_property(TARGET levin_cuda_kernels PROPERTY CUDA_STANDARD 20)
  target_include_directories(levin_cuda_kernels PRIVATE ${PROJECT_SOURCE_DIR}/src)
  # Relaxed: constexpr functions that host and device share need no markers.
  target_compile_options(levin_cuda_kernels PRIVATE -O3 --Werror=all-warnings
    --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Werror)
  # Weights of samples have the host's bits (round_choose.cu).
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/runtime/cuda/round_choose.cu PROPERTIES
    COMPILE_OPTIONS -fmad=false)

  # wgmma is in machine code for 90a alone: without it there are no chunks (prefill_space.cu).
  set(levin_cuda_wgmma FALSE)
  if("${CMAKE_CUDA_ARCHITECTURES}" MATCHES "90a")
    set(levin_cuda_wgmma TRUE)
  endif()
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/runtime/cuda/prefill_space.cu PROPERTIES
    COMPILE_DEFINITIONS LEVIN_CUDA_WGMMA=$<BOOL:${levin_cuda_wgmma}>)

  file(GLOB levin_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/runtime/cuda/*.cpp)
  add_library(levin_runtime_cuda STATIC ${levin_cuda_sources}
    $<TARGET_OBJECTS:levin_cuda_kernels>)
  target_link_libraries(levin_runtime_cuda PUBLIC levin_runtime CUDA::cudart_static)
  target_compile_definitions(levin_runtime_cuda PUBLIC LEVIN_CUDA=1)
  target_link_libraries(levin_cli PUBLIC levin_runtime_cuda)

  file(GLOB levin_cuda_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/runtime/cuda_*.cpp)
  add_executable(test_cuda ${levin_cuda_tests})
  target_include_directories(test_cuda PRIVATE ${PROJECT_SOURCE_DIR}/tests/runtime)
  target_compile_definitions(test_cuda PRIVATE LEVIN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(test_cuda PRIVATE levin_runtime_cuda levin_engine GTest::gmock
    GTest::gtest_main)
  # Calls that allocate or wait are counted by cuda_round_calls_test.cpp.
  foreach(call cudaMalloc cudaMallocAsync cudaMallocHost cudaHostAlloc cudaFree cudaFreeHost
      cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize cudaMemcpy cudaMemcpyAsync
      cudaGraphLaunch)
    target_link_options(test_cuda PRIVATE -Wl,--wrap=${call})
  endforeach()
  include(GoogleTest)
  gtest_discover_tests(test_cuda DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600)

  add_executable(cuda_step ${PROJECT_SOURCE_DIR}/benchmarks/cuda_step.cpp)
  target_link_libraries(cuda_step PRIVATE levin_runtime_cuda)
endif()
