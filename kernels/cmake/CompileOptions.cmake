# How every C file of the project is compiled, and which files may use which instruction set.
include(CheckCCompilerFlag)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
if(DG_WERROR)
  list(APPEND warnings -Werror)
endif()
foreach(warning IN LISTS warnings)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:${warning}>)
endforeach()

if(DG_SANITIZE)
  string(REPLACE ";" "," sanitizers "${DG_SANITIZE}")
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${sanitizers}>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${sanitizers})
  dg_note(DG_SANITIZE ON "${sanitizers}")
endif()

# The flags of each suffix: gemm_avx2.c is compiled with the flags of avx2, and so on. Nothing else is compiled for more than the
# compiler's default machine, so the library starts on every CPU and chooses at run time.
set(DG_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(DG_ISA_FLAGS_avx512 ${DG_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi)
set(DG_ISA_FLAGS_avx512_bf16 ${DG_ISA_FLAGS_avx512} -mavx512bf16 -mgfni)
set(DG_ISA_FLAGS_amx ${DG_ISA_FLAGS_avx512_bf16} -mamx-tile -mamx-bf16)

set(DG_ISAS "")
foreach(isa IN ITEMS avx2 avx512 avx512_bf16 amx)
  string(TOUPPER ${isa} upper)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    list(JOIN DG_ISA_FLAGS_${isa} " " flags)
    check_c_compiler_flag("${flags}" DG_COMPILER_HAS_${upper})
  endif()
  if(DG_COMPILER_HAS_${upper})
    list(APPEND DG_ISAS ${isa})
  endif()
endforeach()

if(DG_ISAS)
  list(JOIN DG_ISAS " " isas)
  dg_note("CPU kernels" ON "ref ${isas}; chosen at run time")
else()
  dg_note("CPU kernels" ON "ref only: no vector kernels for ${CMAKE_SYSTEM_PROCESSOR} or for this compiler")
endif()

# dg_isa_sources(<target> <sources>...): adds those sources whose suffix is an instruction set that the compiler knows, each with
# its flags, and defines DG_WITH_<ISA>=1 for the whole project for those, so that tables can leave out the others.
function(dg_isa_sources target)
  foreach(source IN LISTS ARGN)
    if(NOT source MATCHES "_(avx512_bf16|avx512|avx2|amx)\\.c$")
      message(FATAL_ERROR "${source}: its suffix names no instruction set")
    endif()
    set(isa ${CMAKE_MATCH_1})
    if(isa IN_LIST DG_ISAS)
      target_sources(${target} PRIVATE ${source})
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${DG_ISA_FLAGS_${isa}}")
    endif()
  endforeach()
endfunction()
