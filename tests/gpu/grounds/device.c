/* What the driver says it is and drives: its version, the device's name, memory and abilities.
 *
 * Why: a report stands for the machine it was made on, and for nothing else. Whether that was hardware is
 * the driver's word, asked each time; run.sh asks this before all else. */
#include "ground.h"

struct attribute {
    int number;
    const char *name;
};
static const struct attribute attributes[] = {
    {75, "compute capability, major"},
    {76, "compute capability, minor"},
    {16, "multiprocessors"},
    {20, "compute mode"},
    {40, "copy engines"},
    {102, "virtual memory management"},
    {103, "handles as file descriptors"},
    {110, "GPUDirect RDMA with virtual memory management"},
    {115, "memory pools"},
    {124, "dma-buf"},
};

int main(void)
{
    int version = 0;
    char name[96] = "";
    size_t free = 0, total = 0;
    begin("device");
    NEED(cu.driver_version(&version));
    say_figure("driver", "CUDA version", version, NULL, "%d.%d", version / 1000, version % 1000 / 10);
    NEED(cu.init(0));
    NEED(cu.device_name(name, sizeof name, 0));
    say_words("device", "name", name, "device 0");
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        int value = -1, code = cu.device_attribute(&value, attributes[i].number, 0);
        if (code == 0)
            say_figure("device", attributes[i].name, value, NULL, "attribute %d", attributes[i].number);
        else
            say_failed("device", attributes[i].name, "cuDeviceGetAttribute", code);
    }
    NEED(start());
    NEED(cu.memory_info(&free, &total));
    say_figure("device", "memory", (double)total / (double)MIB, "MiB", "%zu MiB free with one context",
               (size_t)(free / MIB));
    return 0;
}
