# Linking for a glibc older than the one here: DG_OLD_GLIBC.
#
# glibc 2.32 and 2.34 moved the functions of libpthread, libdl and librt into libc, under new versions. A library linked there asks for
# pthread_create@GLIBC_2.34 and does not load on older systems, although the old version, GLIBC_2.2.5, is still served everywhere. So the
# libraries are linked against stand-ins that have the sonames of old and those functions under their old version; newer systems keep the
# three files for programs of that kind. glibc 2.29 gave functions of libm new versions, which set errno in another way; the old ones stayed.
# Nothing here is compiled differently.
set(DG_GLIBC_LIBRARIES pthread dl rt m)
set(DG_GLIBC_pthread_SONAME libpthread.so.0)
set(DG_GLIBC_pthread_SYMBOLS
  pthread_condattr_setpshared pthread_create pthread_detach pthread_getspecific pthread_join pthread_key_create pthread_key_delete
  pthread_kill pthread_mutex_trylock pthread_mutexattr_destroy pthread_mutexattr_init pthread_mutexattr_setpshared
  pthread_mutexattr_settype pthread_once pthread_rwlock_destroy pthread_rwlock_init pthread_rwlock_rdlock pthread_rwlock_timedrdlock
  pthread_rwlock_timedwrlock pthread_rwlock_tryrdlock pthread_rwlock_trywrlock pthread_rwlock_unlock pthread_rwlock_wrlock
  pthread_rwlockattr_destroy pthread_rwlockattr_init pthread_rwlockattr_setpshared pthread_setspecific pthread_sigmask
  pthread_spin_destroy pthread_spin_init pthread_spin_lock pthread_spin_trylock pthread_spin_unlock
  sem_destroy sem_init sem_post sem_timedwait sem_trywait sem_wait)
set(DG_GLIBC_dl_SONAME libdl.so.2)
set(DG_GLIBC_dl_SYMBOLS dlclose dlerror dlopen dlsym dlvsym)
set(DG_GLIBC_dl_SYMBOLS_GLIBC_2.3.4 dlmopen)
set(DG_GLIBC_rt_SONAME librt.so.1)
set(DG_GLIBC_rt_SYMBOLS shm_open shm_unlink)
set(DG_GLIBC_m_SONAME libm.so.6)
set(DG_GLIBC_m_SYMBOLS exp exp2 fegetenv fesetenv log log2 pow) # all of libm that is used: the linker takes no second libm.so.6

# dg_link_old_glibc(<target>): what the target and its libraries, named before, need is looked for in the stand-ins before the libraries that
# are named later, and libc. Only those that are used are recorded as needed.
function(dg_link_old_glibc target)
  if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64)$")
    message(FATAL_ERROR "DG_OLD_GLIBC is for Linux on x86-64, whose old versions of symbols it knows, not for "
                        "${CMAKE_SYSTEM_NAME} on ${CMAKE_SYSTEM_PROCESSOR}")
  endif()
  foreach(name IN LISTS DG_GLIBC_LIBRARIES)
    set(stub old_glibc_${name})
    if(NOT TARGET ${stub})
      dg_old_glibc_stub(${stub} ${DG_GLIBC_${name}_SONAME} "${DG_GLIBC_${name}_SYMBOLS}" "${DG_GLIBC_${name}_SYMBOLS_GLIBC_2.3.4}")
    endif()
    add_dependencies(${target} ${stub})
    target_link_libraries(${target} PRIVATE "-Wl,--push-state,--as-needed,$<TARGET_FILE:${stub}>,--pop-state")
  endforeach()
endfunction()

# A shared library of that soname with those functions as versions 2.2.5 and 2.3.4. They are never called: the real ones have the names.
function(dg_old_glibc_stub target soname symbols newer_symbols)
  set(work ${PROJECT_BINARY_DIR}/old_glibc)
  set(source "")
  foreach(symbol IN LISTS symbols newer_symbols)
    string(APPEND source "__asm__(\".globl ${symbol}\\n.type ${symbol}, @function\\n${symbol}:\");\n")
  endforeach()
  file(CONFIGURE OUTPUT ${work}/${target}.c CONTENT "${source}" @ONLY)
  list(JOIN symbols "; " names)
  set(versions "GLIBC_2.2.5 { global: ${names}; local: *; };\n")
  if(newer_symbols)
    list(JOIN newer_symbols "; " names)
    string(APPEND versions "GLIBC_2.3.4 { global: ${names}; } GLIBC_2.2.5;\n")
  endif()
  file(CONFIGURE OUTPUT ${work}/${target}.map CONTENT "${versions}" @ONLY)
  add_library(${target} SHARED ${work}/${target}.c)
  target_compile_options(${target} PRIVATE -Wno-pedantic -fno-lto) # a file of assembler alone is no ISO C
  target_link_options(${target} PRIVATE -nostdlib -Wl,--version-script=${work}/${target}.map,-soname,${soname})
  set_target_properties(${target} PROPERTIES NO_SONAME ON LIBRARY_OUTPUT_DIRECTORY ${work})
endfunction()
