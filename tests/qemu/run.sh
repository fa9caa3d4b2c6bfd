#!/usr/bin/env bash
# Boots a guest with CXL memory and shows what Tidegate says and does there: tests/qemu/run.sh DIRECTORY, where
# DIRECTORY has the command `tidegate`, its libraries and examples/probe (as target/debug does). The guest's console
# goes to standard output. Nothing of the host is changed, no rights are needed, no KVM.
#
#   host ── QEMU (TCG) ── guest: node 0  processors, DRAM
#                         └ CXL window ── root port ── type-3 device, 256 MiB ── region ── dax0.0 ── node 1
#
# What it needs (`tests/qemu/get.sh` gets it on Debian): QEMU 8.1 or newer, busybox (static), cpio, xz, and a kernel with
# its modules, Linux 6.3 or newer: $TIDEGATE_QEMU_KERNEL, a directory with boot/vmlinuz-* and lib/modules/*, or
# target/qemu/kernel. Where something is missing it says so and ends with status 77.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
built=$(cd "$1" && pwd)
kernel=${TIDEGATE_QEMU_KERNEL:-$root/target/qemu/kernel}
MODULES='drivers/cxl/cxl_acpi drivers/cxl/cxl_pci drivers/cxl/cxl_mem drivers/dax/kmem drivers/dax/dax_cxl drivers/dax/device_dax'

missing() { echo "missing: $*"; exit 77; }
for tool in qemu-system-x86_64 busybox cpio xz strip; do
    command -v "$tool" >/dev/null || missing "$tool"
done
devices=$(qemu-system-x86_64 -device cxl-type3,help 2>&1 || true)
[[ $devices == *volatile-memdev* ]] || missing 'a QEMU whose CXL devices have volatile memory (8.1)'
image=$(compgen -G "$kernel/boot/vmlinuz-*" | head -1) || missing "a kernel in $kernel"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
guest=$work/guest
mkdir -p "$guest"/{bin,dev,proc,sys,modules,usr/bin,usr/lib/tidegate}
cp "$(command -v busybox)" "$guest/bin/busybox"
cp "$root/tests/qemu/init" "$guest/init"
for module in $MODULES; do
    file=$(compgen -G "$kernel/lib/modules/*/kernel/$module.ko*" | head -1) || missing "the module $module in $kernel"
    case $file in
        *.xz) xz -dc "$file" ;;
        *) cat "$file" ;;
    esac >"$guest/modules/${module##*/}.ko"
done
programs=("$built/tidegate" "$built/examples/probe")
libraries=("$built"/libtidegate.so "$built"/libsoftgpu_*.so)
for file in "${programs[@]}" "${libraries[@]}"; do strip -o "$guest/bin/${file##*/}" "$file"; done
# The libraries of the system that these want, under the paths at which they are looked for.
ldd "${programs[@]}" "${libraries[@]}" | grep -o '/[^ ]*' | grep -v ':$' | sort -u | while read -r library; do
    mkdir -p "$guest$(dirname "$library")"
    cp -L "$library" "$guest$library"
done
(cd "$guest" && find . | cpio --quiet -o -H newc) | gzip -1 >"$work/initrd"

# Not under a hypervisor, as the guest sees it: its kernel takes CXL windows for what they are.
timeout -k 5 "${TIDEGATE_QEMU_PATIENCE:-180}" qemu-system-x86_64 \
    -accel tcg -cpu max,hypervisor=off -smp 1 -nodefaults -no-reboot -display none -serial stdio \
    -machine q35,cxl=on -m 768M,maxmem=4G,slots=2 \
    -object memory-backend-ram,id=dram,size=768M -numa node,nodeid=0,memdev=dram \
    -object memory-backend-ram,id=cxl,size=256M \
    -device pxb-cxl,bus_nr=12,bus=pcie.0,id=bridge -M cxl-fmw.0.targets.0=bridge,cxl-fmw.0.size=1G \
    -device cxl-rp,port=0,bus=bridge,id=root-port,chassis=0,slot=2 \
    -device cxl-type3,bus=root-port,volatile-memdev=cxl,id=device,sn=1 \
    -kernel "$image" -initrd "$work/initrd" -append 'console=ttyS0 quiet panic=-1 tsc=unstable' </dev/null
