# opschema_generate(): every host of a library from its schema file.
#
#   find_package(opschema REQUIRED)
#   add_library(wave SHARED kernels/scaled.c)          # your kernels: one wv_<op>_impl() per operator
#   opschema_generate(wave SCHEMA schema/ops.schema)
#
# opschema_generate(<target> SCHEMA <file> [OUTPUT <folder>] [HOSTS <host>...] [CUDA] [PYTHON <interpreter>])
#
#   <target>  a library of yours; it gets the generated checks and table, the runtime that they call, and the include folders:
#             <namespace>/<namespace>.h and <namespace>.hpp for its users, c/calls.h for its kernels
#   OUTPUT    where the generated files go (generated/ in the current source folder); `opschema check` holds for it
#   HOSTS     of c cpp torch torch_library python dlpack docs (c cpp docs). `torch` makes the libraries <target>_torch and
#             <target>_extension, which need a C++ compiler and the headers of Python and serve every torch >= 2.10; `torch_library` makes
#             the same ones from TORCH_LIBRARY, for the torch >= 2.4 that the interpreter has; `dlpack` makes the module <target>_dlpack,
#             which needs the headers of Python. With `python`, the package is put together in python/<namespace> of the build folder,
#             where all these libraries are
#   CUDA      compile the runtime's CUDA part too, so that contexts, devices and streams work; the project needs the language CUDA
#   PYTHON    a Python >= 3.10 with Jinja2; found otherwise
#
# opschema_samples(<target> <file.c> [SEED <n>] [COUNT <n>] [ADJUST <file.py>])
#
#   A custom command that writes a test program: calls of the library of <target> that follow from its contracts, right ones and wrong
#   ones (`opschema samples --help`).
#
# The build regenerates when the schema file has changed. Sets <target>_OPSCHEMA_OUTPUT and <target>_OPSCHEMA_NAMESPACE.
get_filename_component(OPSCHEMA_PYTHONPATH "${CMAKE_CURRENT_LIST_DIR}/python" ABSOLUTE)

function(opschema_generate target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "CUDA" "SCHEMA;OUTPUT;PYTHON" "HOSTS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "opschema_generate(${target}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_SCHEMA)
    message(FATAL_ERROR "opschema_generate(${target}) needs SCHEMA, the schema file")
  endif()
  if(NOT arg_OUTPUT)
    set(arg_OUTPUT generated)
  endif()
  if(NOT arg_HOSTS)
    set(arg_HOSTS c cpp docs)
  endif()
  if(NOT "c" IN_LIST arg_HOSTS)
    list(PREPEND arg_HOSTS c)
  endif()
  if(arg_PYTHON AND NOT Python_EXECUTABLE)
    set(Python_EXECUTABLE ${arg_PYTHON})
  endif()
  set(components Interpreter)
  set(torch_hosts ${arg_HOSTS})
  list(FILTER torch_hosts INCLUDE REGEX "^torch(_library)?$")
  list(LENGTH torch_hosts torch_count)
  if(torch_count GREATER 1)
    message(FATAL_ERROR "opschema_generate(${target}): the hosts torch and torch_library make the same library: take one")
  endif()
  if(torch_hosts OR "dlpack" IN_LIST arg_HOSTS)
    list(APPEND components Development.Module)
  endif()
  find_package(Python 3.10 REQUIRED COMPONENTS ${components})
  if(NOT arg_PYTHON)
    set(arg_PYTHON ${Python_EXECUTABLE})
  endif()
  get_filename_component(schema ${arg_SCHEMA} ABSOLUTE)
  get_filename_component(out ${arg_OUTPUT} ABSOLUTE)
  set(work ${CMAKE_CURRENT_BINARY_DIR}/${target}_opschema)
  list(JOIN arg_HOSTS "," hosts)
  file(STRINGS ${schema} head REGEX "^(namespace|prefix) ")
  string(REGEX MATCH "namespace ([A-Za-z0-9_]+)" found "${head}")
  set(namespace ${CMAKE_MATCH_1})
  string(REGEX MATCH "prefix ([A-Za-z0-9_]+)" found "${head}")
  string(TOUPPER "${CMAKE_MATCH_1}" prefix)

  # Once now, since targets need their sources, and again in the build when something has changed.
  set(opschema ${CMAKE_COMMAND} -E env PYTHONPATH=${OPSCHEMA_PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 ${arg_PYTHON} -m opschema)
  set(options --schema ${schema} --hosts ${hosts})
  opschema_run(output ${opschema} generate ${options} --out ${out})
  opschema_run(runtime ${opschema} runtime ${options} --out ${work}/runtime)
  string(REPLACE "\n" ";" runtime "${runtime}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${schema})
  add_custom_command(OUTPUT ${work}/generated.stamp
    COMMAND ${opschema} generate ${options} --out ${out}
    COMMAND ${CMAKE_COMMAND} -E touch ${work}/generated.stamp
    DEPENDS ${schema} COMMENT "Generating ${arg_OUTPUT} from ${arg_SCHEMA}" VERBATIM)
  add_custom_target(${target}_opschema DEPENDS ${work}/generated.stamp)
  add_dependencies(${target} ${target}_opschema)

  # The C library.
  set(sources ${runtime})
  list(FILTER sources INCLUDE REGEX "^kernels/.*\\.c$")
  if(arg_CUDA)
    list(APPEND sources kernels/cuda/device.cu)
    target_compile_definitions(${target} PRIVATE ${prefix}_WITH_CUDA=1)
  endif()
  list(TRANSFORM sources PREPEND ${work}/runtime/)
  target_sources(${target} PRIVATE ${sources} ${out}/c/checks.c ${out}/c/operators.c)
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${work}/runtime/kernels/include> $<BUILD_INTERFACE:${out}/include>
    PRIVATE ${work}/runtime/kernels ${out})
  target_compile_features(${target} PRIVATE c_std_11)
  find_package(Threads REQUIRED)
  target_link_libraries(${target} PRIVATE Threads::Threads m ${CMAKE_DL_LIBS})
  set_target_properties(${target} PROPERTIES C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
                                             POSITION_INDEPENDENT_CODE ON)

  set(package ${CMAKE_CURRENT_BINARY_DIR}/python/${namespace})
  if(torch_hosts)
    add_library(${target}_torch SHARED ${out}/${torch_hosts}/register.cpp ${work}/runtime/bindings/${torch_hosts}/glue.cpp)
    add_dependencies(${target}_torch ${target}_opschema)
    target_include_directories(${target}_torch PRIVATE ${work}/runtime/bindings/${torch_hosts} ${work}/runtime/bindings/torch)
    target_compile_features(${target}_torch PRIVATE cxx_std_17)
    target_link_libraries(${target}_torch PRIVATE ${target})
    if(torch_hosts STREQUAL "torch")
      # An empty library of this soname stands in for torch's, which is loaded already when this one is.
      file(CONFIGURE OUTPUT ${work}/empty.c CONTENT "")
      add_library(${target}_torch_stub SHARED ${work}/empty.c)
      set_target_properties(${target}_torch_stub PROPERTIES OUTPUT_NAME torch LIBRARY_OUTPUT_DIRECTORY ${work}/stub)
      add_dependencies(${target}_torch ${target}_torch_stub)
      target_link_libraries(${target}_torch
        PRIVATE "-Wl,--push-state,--no-as-needed,$<TARGET_FILE:${target}_torch_stub>,--pop-state")
      file(REMOVE ${package}/_torch_library) # of an earlier configuration
    else()
      opschema_use_torch(${target}_torch ${arg_PYTHON} ${package})
    endif()
    add_library(${target}_extension MODULE ${work}/runtime/bindings/torch/module.c)
    target_link_libraries(${target}_extension PRIVATE ${target}_torch ${target})
    target_include_directories(${target}_extension SYSTEM PRIVATE ${Python_INCLUDE_DIRS})
    set_target_properties(${target}_extension PROPERTIES PREFIX "" OUTPUT_NAME _C_extension SUFFIX .abi3.so)
    set_target_properties(${target} ${target}_torch ${target}_extension PROPERTIES
      LIBRARY_OUTPUT_DIRECTORY ${package} BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
  endif()
  if("dlpack" IN_LIST arg_HOSTS)
    set(sources ${runtime})
    list(FILTER sources INCLUDE REGEX "^bindings/dlpack/.*\\.c$")
    list(TRANSFORM sources PREPEND ${work}/runtime/)
    add_library(${target}_dlpack MODULE ${out}/dlpack/module.c ${sources})
    add_dependencies(${target}_dlpack ${target}_opschema)
    target_compile_features(${target}_dlpack PRIVATE c_std_11)
    target_include_directories(${target}_dlpack PRIVATE ${work}/runtime/bindings/dlpack)
    target_include_directories(${target}_dlpack SYSTEM PRIVATE ${Python_INCLUDE_DIRS})
    target_link_libraries(${target}_dlpack PRIVATE ${target})
    set_target_properties(${target}_dlpack PROPERTIES PREFIX "" OUTPUT_NAME dlpack SUFFIX .abi3.so C_VISIBILITY_PRESET hidden)
    set_target_properties(${target} ${target}_dlpack PROPERTIES
      LIBRARY_OUTPUT_DIRECTORY ${package} BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
    add_custom_command(TARGET ${target}_dlpack POST_BUILD
      COMMAND ${CMAKE_COMMAND} -E copy_if_different ${out}/dlpack/dlpack.pyi ${package}/dlpack.pyi VERBATIM)
  endif()
  if("python" IN_LIST arg_HOSTS)
    set(modules ${runtime})
    list(FILTER modules INCLUDE REGEX "^bindings/python/.*\\.pyi?$")
    list(TRANSFORM modules PREPEND ${work}/runtime/)
    add_custom_target(${target}_python ALL
      COMMAND ${CMAKE_COMMAND} -E make_directory ${package}
      COMMAND ${CMAKE_COMMAND} -E copy_if_different ${modules} ${out}/python/_C.py ${out}/python/_C.pyi ${out}/python/_release.py ${package}
      VERBATIM)
    add_dependencies(${target}_python ${target}_opschema)
  endif()

  set_target_properties(${target} PROPERTIES OPSCHEMA_COMMAND "${opschema}" OPSCHEMA_SCHEMA ${schema})
  set(${target}_OPSCHEMA_OUTPUT ${out} PARENT_SCOPE)
  set(${target}_OPSCHEMA_NAMESPACE ${namespace} PARENT_SCOPE)
endfunction()

# opschema_use_torch(<target> <interpreter> <package>): the headers and libraries of the torch that the interpreter has; a file in the
# package tells it that its torch host is the classic one.
function(opschema_use_torch target python package)
  opschema_run(torch ${python} -c "import torch\nprint(torch.__path__[0], torch.__version__, int(torch.compiled_with_cxx11_abi()), sep='\\n')")
  string(REPLACE "\n" ";" torch "${torch}")
  list(GET torch 0 folder)
  list(GET torch 1 version)
  list(GET torch 2 has_cxx11_abi)
  if(version VERSION_LESS 2.4)
    message(FATAL_ERROR "opschema: the host torch_library needs torch >= 2.4, ${python} has ${version}")
  endif()
  target_include_directories(${target} SYSTEM PRIVATE ${folder}/include ${folder}/include/torch/csrc/api/include)
  target_link_libraries(${target} PRIVATE ${folder}/lib/libtorch_cpu.so ${folder}/lib/libc10.so)
  target_compile_definitions(${target} PRIVATE _GLIBCXX_USE_CXX11_ABI=${has_cxx11_abi})
  if(version VERSION_GREATER_EQUAL 2.12)
    target_compile_features(${target} PRIVATE cxx_std_20) # its headers ask for it
  endif()
  file(WRITE ${package}/_torch_library "built for torch ${version}\n")
endfunction()

function(opschema_samples target file)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "SEED;COUNT;ADJUST" "")
  get_target_property(opschema ${target} OPSCHEMA_COMMAND)
  get_target_property(schema ${target} OPSCHEMA_SCHEMA)
  if(arg_UNPARSED_ARGUMENTS OR NOT opschema)
    message(FATAL_ERROR "opschema_samples(${target} ${file}) takes a target of opschema_generate(), a file, SEED, COUNT and ADJUST")
  endif()
  set(options --schema ${schema} --out ${file})
  foreach(option IN ITEMS SEED COUNT ADJUST)
    if(DEFINED arg_${option})
      string(TOLOWER ${option} name)
      list(APPEND options --${name} ${arg_${option}})
    endif()
  endforeach()
  add_custom_command(OUTPUT ${file} COMMAND ${opschema} samples ${options} DEPENDS ${schema} ${arg_ADJUST} COMMENT "Drawing calls from ${schema}" VERBATIM)
endfunction()

# opschema_run(<variable> <command>...): runs it; what it printed. A failure ends the configuration with its words.
function(opschema_run variable)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE result OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "opschema: ${output}\n${errors}")
  endif()
  set(${variable} "${output}" PARENT_SCOPE)
endfunction()
