# Builds the C++ example out of the tree against an installed deep_gemm, as C++17 and as C++20, and runs it.
#
#   cmake -D BUILD_DIR=... -D WORK_DIR=... -D SOURCE_DIR=... -D CXX=... -P cpp.cmake
cmake_minimum_required(VERSION 3.25)

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
run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/tests/embed/consumer_cpp -B ${WORK_DIR}/build -D CMAKE_CXX_COMPILER=${CXX}
    -D CMAKE_PREFIX_PATH=${WORK_DIR}/installed -D EXAMPLE=${SOURCE_DIR}/bindings/cpp/examples/bf16_gemm.cpp)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
foreach(standard IN ITEMS 17 20)
  run(${WORK_DIR}/build/bf16_gemm_${standard})
  message("${output}")
  if(NOT output MATCHES "with a wrong shape: DG_ERR_INVALID_ARGUMENT: bf16_gemm_nt: b has k = 69, expected 70 to match a\n")
    message(FATAL_ERROR "this is not the message that a wrong shape should give")
  endif()
endforeach()
