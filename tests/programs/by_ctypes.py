"""Has the driver by ctypes. Arguments: the library; the call, as in driver.h."""

import ctypes
import sys

BYTES = 4 << 20


def check(code):
    if code != 0:
        sys.exit(f"a call answered {code}")


def main():
    driver = ctypes.CDLL(sys.argv[1])
    call = sys.argv[2]
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    check(driver.cuInit(0))
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(driver.cuCtxSetCurrent(context))
    check(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(BYTES)))
    check(driver.cuMemsetD8_v2(address, 1, ctypes.c_size_t(BYTES)))
    print("filled", flush=True)
    sys.stdin.readline()
    expected = 1 if call == "copy" else 2
    if call == "memset":
        check(driver.cuMemsetD8_v2(address, expected, ctypes.c_size_t(BYTES)))
    if call == "launch":
        module, function, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(BYTES)
        check(driver.cuModuleLoad(ctypes.byref(module), sys.argv[3].encode()))
        check(driver.cuModuleGetFunction(ctypes.byref(function), module, b"count_up"))
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(count))
        check(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None))
    host = ctypes.create_string_buffer(BYTES)
    check(driver.cuMemcpyDtoH_v2(host, address, ctypes.c_size_t(BYTES)))
    print("as expected" if host.raw == bytes([expected]) * BYTES else "not as expected")


main()
