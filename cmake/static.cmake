# MORAY_STATIC: programs that run where none of our packages is installed, the C library aside.
#
# Debian has fmt and simdjson as shared libraries only: fmt is taken as a header, and simdjson's
# library is laid beside the programs, where they look for it first.
add_library(moray_fmt INTERFACE)
if(NOT MORAY_STATIC)
  target_link_libraries(moray_fmt INTERFACE fmt::fmt)
  return()
endif()

target_link_libraries(moray_fmt INTERFACE fmt::fmt-header-only)
find_library(UTF8PROC_ARCHIVE libutf8proc.a REQUIRED)
set(UTF8PROC_LIBRARY ${UTF8PROC_ARCHIVE})
add_compile_definitions(UTF8PROC_STATIC)
add_link_options(-static-libgcc -static-libstdc++)

get_target_property(simdjson_configuration simdjson::simdjson IMPORTED_CONFIGURATIONS)
get_target_property(simdjson_library simdjson::simdjson IMPORTED_LOCATION_${simdjson_configuration})
get_target_property(simdjson_name simdjson::simdjson IMPORTED_SONAME_${simdjson_configuration})
get_filename_component(simdjson_file ${simdjson_library} REALPATH)
configure_file(${simdjson_file} ${PROJECT_BINARY_DIR}/${simdjson_name} COPYONLY)
# The programs lie in the build folder or in one of its tests/ folders.
set(CMAKE_BUILD_RPATH "$ORIGIN" "$ORIGIN/.." "$ORIGIN/../..")
set(CMAKE_SKIP_BUILD_RPATH OFF)
