# Looks for nvcc. Gives DG_HAS_CUDA; when it is on, the language CUDA is enabled and DG_CUDART_STATIC is the static runtime.
#
# The library is linked by the C compiler: what CMake would add for the language CUDA (libstdc++ among it) is taken away, and the
# static runtime is linked by its path. So neither libdeep_gemm.so nor a program that uses it needs C++ or a CUDA library.
include(CheckLanguage)

macro(dg_find_cuda)
  set(cuda_found OFF)
  set(cuda_reason "not asked for")
  if(NOT DG_CUDA STREQUAL "OFF")
    if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
      set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
    endif()
    set(CMAKE_CUDA_ARCHITECTURES "${DG_CUDA_ARCHITECTURES}")
    check_language(CXX) # nvcc needs a C++ compiler as its host compiler
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
      find_library(DG_CUDART_STATIC cudart_static HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} REQUIRED)
      mark_as_advanced(DG_CUDART_STATIC)
      set(CMAKE_CUDA_IMPLICIT_LINK_LIBRARIES "")
      set(CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES "")
      set(CMAKE_CUDA_RUNTIME_LIBRARY None)
      set(cuda_found ON)
      string(REPLACE ";" " " cuda_architectures "${DG_CUDA_ARCHITECTURES}")
      set(cuda_reason "nvcc ${CMAKE_CUDA_COMPILER_VERSION}, for ${cuda_architectures}")
    else()
      set(cuda_reason "no nvcc that works was found; set CUDACXX to its path")
    endif()
  endif()
  dg_feature(DG_CUDA ${cuda_found} "${cuda_reason}")
endmacro()
