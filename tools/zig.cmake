# Builds for a C library as old as manylinux2014's, of either architecture: Zig's C compiler links against the symbols of any
# glibc. tools/wheels.py sets both variables.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{NVSHARE_ARCHITECTURE})
set(CMAKE_C_COMPILER $ENV{NVSHARE_ZIG} cc -target $ENV{NVSHARE_ARCHITECTURE}-linux-gnu.2.17)
set(CMAKE_ASM_COMPILER ${CMAKE_C_COMPILER})
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s) # this machine's strip knows its own architecture alone
