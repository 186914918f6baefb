# Parts that the machine may or may not be able to build. Each is asked for by an option AUTO, ON or OFF, and answered once, with
# a reason, by dg_feature(). The answers make the summary that configuring ends with.

# dg_feature(<option> <found> <reason>): sets HAS_<option> in the caller's scope, DG_CUDA giving DG_HAS_CUDA. <reason> is one
# phrase: what was found, or what is missing. An option that is ON makes a missing part an error.
function(dg_feature option found reason)
  string(REPLACE "DG_" "DG_HAS_" result ${option})
  if("${${option}}" STREQUAL "OFF" OR (NOT "${${option}}" STREQUAL "AUTO" AND NOT "${${option}}"))
    set(found OFF)
    set(reason "${option}=OFF")
  elseif(NOT found AND NOT "${${option}}" STREQUAL "AUTO")
    message(FATAL_ERROR "${option}=${${option}}: ${reason}")
  endif()
  if(found)
    set(${result} ON PARENT_SCOPE)
  else()
    set(${result} OFF PARENT_SCOPE)
  endif()
  dg_note(${option} "${found}" "${reason}")
endfunction()

# dg_note(<name> <is_on> <text>): one line of the summary.
function(dg_note name is_on text)
  if(is_on)
    set(mark "on ")
  else()
    set(mark "off")
  endif()
  string(LENGTH "${name}" length)
  math(EXPR blanks "24 - ${length}")
  if(blanks LESS 1)
    set(blanks 1) # a long name is followed by one blank
  endif()
  string(REPEAT " " ${blanks} padding)
  set_property(GLOBAL APPEND_STRING PROPERTY DG_SUMMARY "--   ${name}${padding}${mark}  ${text}\n")
endfunction()

function(dg_print_summary)
  get_property(lines GLOBAL PROPERTY DG_SUMMARY)
  message(STATUS "\n-- deep_gemm ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}\n${lines}--")
endfunction()
