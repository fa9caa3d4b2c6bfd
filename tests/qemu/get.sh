#!/usr/bin/env bash
# Gets what tests/qemu/run.sh needs, on Debian, as root: packages by name, and a kernel, which is unpacked in target/qemu
# and not installed. QEMU before 8.1 and Linux before 6.3 have no volatile CXL memory: where the release has older ones,
# they come from its backports.
set -euo pipefail
cd "$(dirname "$0")/../.."
. /etc/os-release
work=$PWD/target/qemu
mkdir -p "$work/lists/partial" "$work/sources"

# The release's own archive, as this machine knows it, with its backports; the machine's sources stay as they are.
archive=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $VERSION_CODENAME" 'Created-By: Packages' | head -1)
cat >"$work/sources/release.sources" <<END
Types: deb
URIs: $archive
Suites: $VERSION_CODENAME $VERSION_CODENAME-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
apt=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/sources" -o Dir::State::Lists="$work/lists")
apt-get "${apt[@]}" update -qq

# As new as is needed, from the release if that has it.
newest() { apt-cache "${apt[@]}" policy "$1" | sed -n 's/.*Candidate: \([0-9]*:\)\?//p'; }
target=()
if dpkg --compare-versions "$(newest linux-image-cloud-amd64)" lt 6.3; then
    target=(-t "$VERSION_CODENAME-backports")
fi
packages=()
want() { command -v "$1" >/dev/null || packages+=("$2"); }
want qemu-system-x86_64 qemu-system-x86
want busybox busybox-static
want cpio cpio
want xz xz-utils
want strip binutils
if [ ${#packages[@]} -gt 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get "${apt[@]}" install -y -qq --no-install-recommends "${target[@]}" \
        "${packages[@]}"
fi

# The package named so stands for the newest of its kind.
kernel=$(apt-cache "${apt[@]}" "${target[@]}" depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p')
if [ ! -e "$work/kernel/$kernel" ]; then
    rm -rf "$work/kernel"
    (cd "$work" && apt-get "${apt[@]}" "${target[@]}" -qq download "$kernel" && dpkg-deb -x "$kernel"_*.deb kernel)
    rm "$work/$kernel"_*.deb
    touch "$work/kernel/$kernel"
fi
