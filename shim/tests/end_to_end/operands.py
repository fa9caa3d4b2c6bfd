"""Describes tensors, arrays and ranges, and prints what the library is told and answers."""

import tidegate

push = tidegate._library.operands_push


def say(tensors, count):
    for tensor in tensors:
        dimensions = list(zip(tensor.sizes, tensor.strides))[: tensor.rank]
        told = "nine dimensions" if tensor.rank == 9 else f"{tensor.address} {tensor.element} {dimensions}"
        print(f"{told}: {push(tensors, count)}")
    return 0


tidegate._library.operands_push = say


class Tensor:
    def __init__(self, address, shape, strides, element):
        self.address, self.shape, self.strides, self.element = address, shape, strides, element

    def data_ptr(self):
        return self.address

    def stride(self):
        return self.strides

    def element_size(self):
        return self.element


class Array:
    def __init__(self, shape, strides):
        self.__cuda_array_interface__ = {
            "data": (4096, False), "shape": shape, "strides": strides, "typestr": "<f4", "version": 3,
        }


for tensor in [
    Tensor(4096, (3, 4), (4, 1), 2),
    Array((5, 10), None),
    Array((5,), (-8,)),
    Array((), None),
    (4096, 100),
    Tensor(4, (3,), (-1,), 4),
    Tensor(4096, (1,) * 9, (1,) * 9, 4),
]:
    with tidegate.operands(tensor):
        pass
try:
    with tidegate.operands(4096):
        pass
except TypeError:
    print("int is no tensor")
