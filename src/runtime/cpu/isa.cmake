# Kernels of the fast CPU runtime are one generic source (runtime/cpu/simd) compiled once per
# instruction set; which one runs is decided at start-up (runtime/cpu/isa.h). They ask for -O3 in
# every build type: unoptimized they would be slower by a factor of a hundred, tests included.
set(LEVIN_SIMD ${CMAKE_CURRENT_LIST_DIR}/simd)
set(LEVIN_SCALAR -O3 -fno-math-errno)
if(LEVIN_SANITIZE)
  set(LEVIN_SCALAR -O1 -fno-math-errno)  # instrumented, -O3 takes the compiler minutes
endif()
set_source_files_properties(${LEVIN_SIMD}/scalar.cpp PROPERTIES
  COMPILE_OPTIONS "${LEVIN_SCALAR}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(LEVIN_AVX2 ${LEVIN_SCALAR} -mavx2 -mfma -mf16c)
  set(LEVIN_AVX512 ${LEVIN_AVX2} -mavx512f -mavx512bw -mavx512dq -mavx512vl
    -mprefer-vector-width=512)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND LEVIN_AVX512 -Wno-uninitialized)  # false in its own header (GCC bug 105593)
  endif()
  set(LEVIN_AVX512_BF16 ${LEVIN_AVX512} -mavx512bf16 -mavx512vnni -mavx512vbmi)
  set_source_files_properties(${LEVIN_SIMD}/avx2.cpp PROPERTIES
    COMPILE_OPTIONS "${LEVIN_AVX2}")
  set_source_files_properties(${LEVIN_SIMD}/avx512.cpp PROPERTIES
    COMPILE_OPTIONS "${LEVIN_AVX512}")
  set_source_files_properties(${LEVIN_SIMD}/avx512_bf16.cpp PROPERTIES
    COMPILE_OPTIONS "${LEVIN_AVX512_BF16}")
  set_source_files_properties(${LEVIN_SIMD}/amx.cpp PROPERTIES
    COMPILE_OPTIONS "${LEVIN_AVX512_BF16};-mamx-tile;-mamx-bf16")
endif()
