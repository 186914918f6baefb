# Builds the classic torch host (DG_TORCH_LIBRARY) in a folder of its own and runs the torch tests on it.
#
#   cmake -D WORK_DIR=... -D SOURCE_DIR=... -D PYTHON=... -D CC=... -D CXX=... -D CTEST=... -P classic.cmake
cmake_minimum_required(VERSION 3.25)

foreach(command IN ITEMS
    "${CMAKE_COMMAND};-S;${SOURCE_DIR};-B;${WORK_DIR};-DDG_TORCH_LIBRARY=ON;-DDG_CUDA=OFF;-DDG_VENV=OFF;-DPython_EXECUTABLE=${PYTHON};-DCMAKE_C_COMPILER=${CC};-DCMAKE_CXX_COMPILER=${CXX}"
    "${CMAKE_COMMAND};--build;${WORK_DIR};--target;deep_gemm_python;--parallel;2"
    "${CTEST};--test-dir;${WORK_DIR};-R;^torch\\.(binding|misuse|operators)$;--output-on-failure;--no-tests=error")
  execute_process(COMMAND ${command} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN command " " command)
    message(FATAL_ERROR "${command}\nexit status: ${result}")
  endif()
endforeach()
