# Builds the C example out of the tree against an installed deep_gemm and runs it.
#
#   cmake -D BUILD_DIR=... -D WORK_DIR=... -D SOURCE_DIR=... -D CC=... -D LIBDIR=... -D KIND=shared|static -D FINDER=cmake|pkg-config
#         -P run.cmake
#
# The tree is installed into one folder and moved to another before it is used: nothing in it may know where it was installed.
cmake_minimum_required(VERSION 3.25)

set(example ${SOURCE_DIR}/bindings/c/examples/fp8_gemm.c)
set(program ${WORK_DIR}/fp8_gemm)
set(prefix ${WORK_DIR}/moved)

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}exit status: ${result}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/installed)
file(RENAME ${WORK_DIR}/installed ${prefix})

if(FINDER STREQUAL "cmake")
  if(KIND STREQUAL "static")
    set(static ON)
  else()
    set(static OFF)
  endif()
  run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/tests/embed/consumer -B ${WORK_DIR}/build -D CMAKE_C_COMPILER=${CC}
      -D CMAKE_PREFIX_PATH=${prefix} -D EXAMPLE=${example} -D deep_gemm_STATIC=${static} -D CMAKE_BUILD_TYPE=Release)
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
  set(program ${WORK_DIR}/build/fp8_gemm)
else()
  find_program(PKG_CONFIG NAMES pkg-config pkgconf)
  if(NOT PKG_CONFIG)
    message("skipped: pkg-config is not installed")
    return()
  endif()
  if(KIND STREQUAL "static")
    set(package deep_gemm-static)
  else()
    set(package deep_gemm)
  endif()
  set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
  run(${PKG_CONFIG} --cflags --libs ${package})
  separate_arguments(flags UNIX_COMMAND "${output}")
  run(${CC} -std=c99 -Wall -Wextra -Wpedantic -Werror ${example} ${flags} -Wl,-rpath,${prefix}/${LIBDIR} -o ${program})
endif()

run(${program})
message("${output}")
if(NOT output MATCHES "with a wrong shape: DG_ERR_INVALID_ARGUMENT: fp8_fp4_gemm_nt: b has k = 319, expected 320 to match a\n")
  message(FATAL_ERROR "this is not the message that a wrong shape should give")
endif()

# What the loader asks for: nothing of C++, CUDA or Python, and the library itself only when it is shared.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${program} RESOLVED_DEPENDENCIES_VAR resolved UNRESOLVED_DEPENDENCIES_VAR unresolved)
list(TRANSFORM resolved REPLACE "^.*/" "")
list(JOIN resolved " " names)
message("loads: ${names}")
if(unresolved OR "${resolved}" MATCHES "stdc\\+\\+|cuda|cudart|python|torch")
  message(FATAL_ERROR "the program needs more than the C library: ${resolved} ${unresolved}")
endif()
if(KIND STREQUAL "shared" AND NOT "${resolved}" MATCHES "libdeep_gemm\\.so\\.[0-9]+(;|$)")
  message(FATAL_ERROR "the program does not load libdeep_gemm.so")
elseif(KIND STREQUAL "static" AND "${resolved}" MATCHES "libdeep_gemm")
  message(FATAL_ERROR "the program loads libdeep_gemm.so although it was linked with the archive")
endif()
