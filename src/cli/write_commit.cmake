# cmake -DSOURCE=<tree> -DHEADER=<file> -P write_commit.cmake: writes MORAY_COMMIT into HEADER, and
# leaves the file alone when it says so already, so that nothing is rebuilt for nothing.
set(commit unknown)
find_program(GIT git)
if(GIT AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --short=10 HEAD
                  OUTPUT_VARIABLE hash OUTPUT_STRIP_TRAILING_WHITESPACE
                  RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed)
    execute_process(COMMAND ${GIT} -C ${SOURCE} diff --quiet HEAD -- src include CMakeLists.txt
                    RESULT_VARIABLE changed ERROR_QUIET)
    set(commit ${hash})
    if(changed)
      string(APPEND commit -dirty)
    endif()
  endif()
endif()
set(text "#pragma once\n#define MORAY_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${HEADER})
  file(READ ${HEADER} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${HEADER} "${text}")
endif()
