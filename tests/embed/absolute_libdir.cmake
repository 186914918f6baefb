# Installs with an absolute library folder, under DESTDIR, and looks at what lies where and what deep_gemm.pc says.
#
#   cmake -D WORK_DIR=... -D SOURCE_DIR=... -D CC=... -P absolute_libdir.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}exit status: ${result}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR}/build -D CMAKE_C_COMPILER=${CC} -D CMAKE_BUILD_TYPE=Debug
    -D DG_CUDA=OFF -D DG_PYTHON=OFF -D DG_TESTS=OFF
    -D CMAKE_INSTALL_PREFIX=/usr -D CMAKE_INSTALL_LIBDIR=/usr/lib/some-triplet)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --parallel 2)
set(ENV{DESTDIR} ${WORK_DIR}/root)
run(${CMAKE_COMMAND} --install ${WORK_DIR}/build)

set(libdir ${WORK_DIR}/root/usr/lib/some-triplet)
foreach(file IN ITEMS libdeep_gemm.so libdeep_gemm.a pkgconfig/deep_gemm.pc cmake/deep_gemm/deep_gemmConfig.cmake)
  if(NOT EXISTS ${libdir}/${file})
    message(FATAL_ERROR "not installed: ${libdir}/${file}")
  endif()
endforeach()
file(READ ${libdir}/pkgconfig/deep_gemm.pc pc)
if(NOT pc MATCHES "\nlibdir=/usr/lib/some-triplet\n" OR NOT pc MATCHES "prefix=/usr\n" OR NOT pc MATCHES "includedir=\\\${prefix}/include\n")
  message(FATAL_ERROR "deep_gemm.pc has wrong folders:\n${pc}")
endif()
