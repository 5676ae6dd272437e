# MORAY_STATIC: programs that run where none of our packages is installed, the C library aside.
#
# Debian has fmt and simdjson as shared libraries only: fmt is taken as headers, and simdjson's
# library is laid beside the programs, where they look for it first.
add_library(fmt_headers INTERFACE)
target_compile_definitions(fmt_headers INTERFACE FMT_HEADER_ONLY)
add_library(fmt::fmt ALIAS fmt_headers)
add_library(fmt::fmt-header-only ALIAS fmt_headers)

set(MORAY_ARCHIVE_UTF8PROC libutf8proc.a)
add_compile_definitions(UTF8PROC_STATIC)
add_link_options(-static-libgcc -static-libstdc++)

find_package(simdjson REQUIRED)
get_target_property(configuration simdjson::simdjson IMPORTED_CONFIGURATIONS)
get_target_property(library simdjson::simdjson IMPORTED_LOCATION_${configuration})
get_target_property(name simdjson::simdjson IMPORTED_SONAME_${configuration})
file(REAL_PATH ${library} library)
configure_file(${library} ${PROJECT_BINARY_DIR}/${name} COPYONLY)
# Programs lie in the build folder or in its tests/ folder.
set(CMAKE_BUILD_RPATH "$ORIGIN" "$ORIGIN/..")
