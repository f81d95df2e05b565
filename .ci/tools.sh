# Installs what the stages of `test` need, or notes what is skipped. Sourced by `test` after need.sh.

# need COMMAND PACKAGE: notes Debian's package for a missing command.
need() { command -v "$1" >/dev/null || missing+=("$2"); }

install_tools() {
    missing=()
    need qemu-loongarch64 qemu-user
    need c++ g++
    need pkg-config pkgconf
    need python3 python3
    [ -n "${LONGMA_LLVM_MC:-}" ] || need llvm-mc-19 llvm-19
    command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || need chromium chromium
    [ -x /usr/local/go/bin/go ] || need go golang-go
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    if [ ${#missing[@]} -gt 0 ]; then
        install_packages "${missing[@]}" || give_up "install these with the system's package manager: ${missing[*]}"
    fi
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || give_up "needs Python 3.11 or later"
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
        rustup component add rustfmt clippy >&2 || give_up "needs cargo fmt and cargo clippy: install rustfmt and clippy"
}

# The kernel's zoned device is tested in a guest.
find_guest_tools() {
    can_boot && return
    install_packages qemu-system-x86 busybox-static && can_boot && return
    notes+=("zoned devices were not tested on null_blk: install qemu-system-x86 and busybox-static")
}

# find_cargo_tool NAME VERSION: puts cargo-NAME on the path. Fetches a binary from Python's package index, because compiling it takes
# longer than compiling Longma.
find_cargo_tool() {
    cargo "$1" --version >/dev/null 2>&1 && return
    local folder=$root/target/tools/$1-$2
    { [ -x "$folder/bin/python" ] || python3 -m venv "$folder"; } &&
        { [ -x "$folder/bin/cargo-$1" ] || "$folder/bin/pip" install -q "astral-dev-toolchain-cargo-$1==$2" >&2; } &&
        PATH="$PATH:$folder/bin"
    return 0
}

find_musl() {
    command -v musl-gcc >/dev/null || install_packages musl-tools || give_up "install musl-tools, whose compiler builds static programs"
}

find_buildah() {
    command -v buildah >/dev/null || install_packages buildah && return
    notes+=("the container was not built: install buildah")
}

find_libvirt() {
    command -v libvirtd >/dev/null && command -v virsh >/dev/null && return
    install_packages libvirt-daemon-system libvirt-clients libvirt-daemon-driver-qemu qemu-system-x86 && return
    notes+=("placement was not tested on libvirt: install libvirt-daemon-system, libvirt-clients and qemu-system-x86")
}

find_faketime() {
    compgen -G "/usr/lib/*/faketime/libfaketimeMT.so.1" >/dev/null && return
    install_packages faketime && return
    notes+=("placement was not tested under a clock that jumps: install faketime")
}

find_postgres() {
    compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || command -v initdb >/dev/null && return
    install_packages postgresql && return
    notes+=("placement was not tested on PostgreSQL: install postgresql")
}

# The libfabric provider is tested in libfabric; without it, and without Open MPI, these tests are skipped.
find_libfabric() {
    command -v fi_pingpong mpicc mpirun >/dev/null && [ -e /usr/include/rdma/providers/fi_prov.h ] && return
    install_packages libfabric-dev libfabric-bin openmpi-bin libopenmpi-dev && return
    notes+=("the libfabric provider was not tested: install libfabric-dev, libfabric-bin, openmpi-bin and libopenmpi-dev")
}

# Affinity's sweeps need iperf3, and root for network namespaces.
find_iperf() {
    command -v iperf3 >/dev/null || [ "$(id -u)" != 0 ] && return
    install_packages iperf3 && return
    notes+=("affinity's sweeps were not tested: install iperf3")
}

find_network_tools() {
    command -v iperf3 >/dev/null && command -v ethtool >/dev/null && command -v tc >/dev/null && return
    install_packages iperf3 ethtool iproute2 && return
    notes+=("affinity was not tested on 16 CPUs: install iperf3, ethtool and iproute2")
}

# The server of zoned maps is tested with others' clients; without them these tests are skipped.
find_redis_clients() {
    command -v redis-benchmark >/dev/null && python3 -c 'import redis' 2>/dev/null && return
    install_packages redis-tools python3-redis && return
    notes+=("longma zoned serve was not tested with redis-cli, redis-benchmark and Python: install redis-tools and python3-redis")
}

# Tests compile programs for MIPS64 and AArch64; without a compiler they are skipped.
find_mips_compiler() {
    command -v mips64el-linux-gnuabi64-gcc >/dev/null && return
    install_packages gcc-mips64el-linux-gnuabi64 libc6-dev-mips64el-cross && return
    export LONGMA_WITHOUT_MIPS=1
    notes+=("programs for MIPS64 were not run: install gcc-mips64el-linux-gnuabi64 and libc6-dev-mips64el-cross")
}

find_arm_compiler() {
    command -v aarch64-linux-gnu-gcc >/dev/null || python3 -m ziglang version >/dev/null 2>&1 && return
    install_packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross && return
    notes+=("programs for AArch64 were not compiled: install gcc-aarch64-linux-gnu and libc6-dev-arm64-cross")
}

# Without gdb-multiarch, the test gets gdb from Python's package index, as it does for LoongArch.
find_gdb() { command -v gdb-multiarch >/dev/null || install_packages gdb-multiarch || true; }

can_boot() { command -v qemu-system-x86_64 >/dev/null && command -v busybox >/dev/null; }

# The vector instructions are checked against QEMU 8.2 or later, if Debian's mirror has one.
find_vector_qemu() {
    [ -n "${LONGMA_QEMU_VECTOR:-}" ] && return
    local output
    if output=$(timeout 600 tests/debian_package.py target/qemu qemu-user 2>&1) &&
        target/qemu/usr/bin/qemu-loongarch64 --version >/dev/null 2>&1; then
        export LONGMA_QEMU_VECTOR=$root/target/qemu/usr/bin/qemu-loongarch64
    else
        say "no newer QEMU (${output##*$'\n'}): vector instructions are checked against formulas only"
        notes+=("vector instructions were not checked against QEMU: ${output##*$'\n'}")
    fi
}

# Fetches mdbook from a newer Debian with the C library that it needs. This takes a minute; building it takes many.
find_mdbook() {
    [ -n "${LONGMA_MDBOOK:-}" ] && return
    command -v mdbook >/dev/null && export LONGMA_MDBOOK=mdbook && return
    local folder=$root/target/mdbook
    local libraries=$folder/usr/lib/x86_64-linux-gnu
    local unpacked="$libraries/ld-linux-x86-64.so.2 --library-path $libraries $folder/usr/bin/mdbook"
    timeout 600 tests/debian_package.py target/mdbook mdbook libc6 libgcc-s1 >&2 && $unpacked --version >/dev/null &&
        export LONGMA_MDBOOK=$unpacked
}

# install_for STAGE...: installs what these stages need.
install_for() {
    local stage
    install_tools
    for stage in "$@"; do
        case $stage in
        unit | quick)
            find_cargo_tool nextest 0.9.148
            find_vector_qemu
            find_iperf
            find_redis_clients
            find_mips_compiler
            find_arm_compiler
            ;;
        deny) find_cargo_tool deny 0.20.2 ;;
        selftests)
            find_arm_compiler
            find_mips_compiler
            ;;
        gdb) find_gdb ;;
        static)
            find_musl
            find_buildah
            ;;
        null_blk) find_guest_tools ;;
        libvirt) find_libvirt ;;
        nodes)
            find_libvirt
            find_guest_tools
            ;;
        affinity)
            find_guest_tools
            find_network_tools
            ;;
        postgres) find_postgres ;;
        placement) find_faketime ;;
        libfabric)
            find_libfabric
            find_cargo_tool nextest 0.9.148
            ;;
        book) find_mdbook ;;
        esac
    done
}
