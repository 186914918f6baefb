# Builds the C library and its tests with warnings as errors: cmake -D WORK_DIR=... -D SOURCE_DIR=... -D CC=... -P this
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${WORK_DIR})
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR} -D CMAKE_C_COMPILER=${CC} -D DG_WERROR=ON -D DG_TESTS=ON
          -D DG_CUDA=OFF -D DG_PYTHON=OFF -D DG_TORCH=OFF
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK_DIR} --parallel 2 COMMAND_ERROR_IS_FATAL ANY)
