# CMake toolchain: clang from the Python package ziglang, for a Cortex-M33 with single-precision floats. The code also runs on larger
# cores.
#   cmake -B build -DCMAKE_TOOLCHAIN_FILE=firmware/ziglang.cmake && cmake --build build
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR arm)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
if(NOT ETHORCH_PYTHON)
  find_program(ETHORCH_PYTHON NAMES python python3 REQUIRED)
endif()
set(CMAKE_C_COMPILER ${ETHORCH_PYTHON} -m ziglang cc)
set(CMAKE_ASM_COMPILER ${ETHORCH_PYTHON} -m ziglang cc)
set(CMAKE_C_COMPILER_WORKS TRUE)
set(MACHINE "-target thumb-freestanding-eabihf -mcpu=cortex_m33+fp_armv8d16sp")
set(CMAKE_C_FLAGS_INIT "${MACHINE} -I${CMAKE_CURRENT_LIST_DIR}/freestanding")
set(CMAKE_ASM_FLAGS_INIT "${MACHINE}")
