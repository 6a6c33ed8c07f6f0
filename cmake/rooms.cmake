# One static library per room of docs/architecture.md. A room names the rooms it may use; the
# include-graph test (tests/structure) checks that the sources keep to it.

add_library(levin_options INTERFACE)
target_include_directories(levin_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
# -ffp-contract=off: quantized bytes must equal the published vectors, and the same request must
# give the same bits whichever code path computes it; kernels ask for FMA explicitly.
target_compile_options(levin_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
  -Wno-sign-conversion -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these falsely in std::string and std::vector at -O2 and above.
  target_compile_options(levin_options INTERFACE -Wno-restrict -Wno-maybe-uninitialized
    -Wno-stringop-overflow -Wno-array-bounds -Wno-stringop-overread -Wno-dangling-pointer)
endif()
if(LEVIN_SANITIZE)
  target_compile_options(levin_options INTERFACE -fsanitize=${LEVIN_SANITIZE}
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(levin_options INTERFACE -fsanitize=${LEVIN_SANITIZE})
  if(LEVIN_SANITIZE MATCHES thread)
    # ThreadSanitizer does not follow fences, and GCC refuses them with it. What Asio orders by a
    # fence is ordered by its queue's mutex, too.
    target_compile_definitions(levin_options INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()
if(LEVIN_FUZZ)
  target_compile_options(levin_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# levin_room(<name> USES <room>... LINKS <external>...)
function(levin_room name)
  cmake_parse_arguments(ROOM "" "" "USES;LINKS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  string(REPLACE "/" "_" target levin_${name})
  add_library(${target} STATIC ${sources})
  target_link_libraries(${target} PUBLIC levin_options ${ROOM_LINKS})
  foreach(used ${ROOM_USES})
    target_link_libraries(${target} PUBLIC levin_${used})
  endforeach()
endfunction()
