# Installs this project into a folder of its own, moves it, and builds and tests a library of tests/outoftree from there.
#
#   cmake -D BUILD_DIR=... -D WORK_DIR=... -D LIBRARY=... -D PYTHON=... -D CC=... [-D OPTIONS=...] -P run.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}exit status: ${result}")
  endif()
  message("${output}")
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/installed)
file(RENAME ${WORK_DIR}/installed ${WORK_DIR}/moved)
# Copied, so that nothing of this repository lies around it.
file(COPY ${CMAKE_CURRENT_LIST_DIR}/${LIBRARY} DESTINATION ${WORK_DIR})
run(${CMAKE_COMMAND} -S ${WORK_DIR}/${LIBRARY} -B ${WORK_DIR}/build -D CMAKE_PREFIX_PATH=${WORK_DIR}/moved -D CMAKE_C_COMPILER=${CC}
    -D Python_EXECUTABLE=${PYTHON} ${OPTIONS})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --parallel 2)
run(${CMAKE_CTEST_COMMAND} --test-dir ${WORK_DIR}/build --output-on-failure --no-tests=error)
