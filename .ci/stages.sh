# The stages of `test`: one function a stage. Sourced by `test`, which sets $root, $longma and $run.
# tests/README.md lists the stages, with the time that each takes and the errors that it finds.

# Packages that are separate workspaces.
standalone=(bench/via bench/zoned python)

stage_format() {
    cargo fmt --all --check || return 1
    local folder
    for folder in "${standalone[@]}"; do
        cargo fmt --manifest-path "$folder/Cargo.toml" --check || return 1
    done
}

# The build has linted our crates, and cargo repeats their warnings. The stages that build the standalone packages lint those.
stage_lint() {
    local warnings=$logs/warnings
    cargo test --workspace --all-targets --locked --no-run 2>&1 | tee "$warnings"
    [ "${PIPESTATUS[0]}" = 0 ] && ! grep -q '^warning' "$warnings"
}

# Licences, duplicates and sources of all dependencies; advisories where the database can be fetched.
stage_deny() {
    if ! cargo deny --version >/dev/null 2>&1; then
        echo "skipped: licences and duplicates were not checked: cargo install --locked cargo-deny"
        return
    fi
    local manifest
    for manifest in Cargo.toml python/Cargo.toml; do
        # Exceptions in deny.toml that the smaller workspace does not need are fine.
        cargo deny --manifest-path "$manifest" --locked check --allow unmatched-skip --allow unnecessary-skip licenses bans sources || return 1
        echo "deny: 1 passed, 0 failed"
    done
    timeout 120 cargo deny fetch db || { echo "skipped: advisories were not checked: their database could not be fetched" && return; }
    cargo deny --locked check --disable-fetch advisories
}

# Builds the command and all tests of the crates, once for all stages.
stage_build() { cargo test --workspace --all-targets --locked --no-run; }

# lint_too COMMAND...: runs a command that builds a standalone package; what clippy says of it is an error.
lint_too() { CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__ "$@"; }

# Runs the tests of the crates, and the examples in their documentation.
stage_unit() {
    local failed=0
    crate_tests || failed=1
    cargo test --workspace --locked --doc --no-fail-fast || failed=1
    return "$failed"
}

# crate_tests [CRATE...]: runs the tests of these crates, or of all, with nextest, which kills and names a test that hangs, or with cargo
# where nextest is missing.
crate_tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        # Chosen from the build of the whole workspace. With -p, cargo would enable fewer features and so build a hundred crates again.
        [ $# -gt 0 ] && set -- -E "$(printf 'package(=longma-%s) or ' "$@")none()"
        cargo nextest run --workspace --locked --no-tests=pass "$@"
    else
        [ $# -gt 0 ] && set -- "${@/#/--package=longma-}" || set -- --workspace
        cargo test --locked --lib --bins --tests --no-fail-fast "$@" -- --show-output
    fi
}

# For the change at hand: the tests of the crates that differ from main, then programs for all architectures at every level.
stage_quick() {
    local -a crates
    mapfile -t crates < <(changed_crates)
    if [ ${#crates[@]} -gt 0 ]; then
        echo "quick: ${crates[*]}"
        crate_tests "${crates[@]}" || return 1
    fi
    tests/guests.py --levels --emulator "$run" || return 1
    python3 -m unittest -v tests/test_house.py tests/test_machines.py tests/test_names.py
}

# Crates with changes since the last commit shared with main, committed or not.
changed_crates() {
    local base
    base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || echo HEAD)
    { git diff --name-only "$base" && git ls-files --others --exclude-standard; } 2>/dev/null |
        while read -r path; do
            while [[ $path == crates/* ]]; do
                path=$(dirname "$path")
                [ -e "$path/Cargo.toml" ] && sed -n 's/^name = "longma-\(.*\)"$/\1/p' "$path/Cargo.toml" && break
            done
        done | sort -u
}

# A second build does nothing.
stage_fresh() { tests/fresh.py --target-dir "$CARGO_TARGET_DIR"; }

# `./run` in a fresh clone with an empty HOME, twice: the second time builds nothing. Takes minutes.
stage_clone() { tests/fresh.py --run; }

# Each published crate can be packed: no file outside its folder, no unpublished dependency.
stage_package() { cargo publish --workspace --dry-run --no-verify --locked --allow-dirty; }

# Each published crate builds from its package alone.
stage_publish() { cargo publish --workspace --dry-run --locked --allow-dirty; }

# The command without its optional features: no placement service, no Parquet.
stage_features() { cargo clippy -p longma-cli --no-default-features --locked -- -D warnings; }

# The workspace compiles with the oldest compiler that Cargo.toml promises.
stage_oldest() {
    local version
    version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    rustup toolchain install "$version" --profile minimal || return 1
    cargo "+$version" check --workspace --locked --target-dir "$CARGO_TARGET_DIR/oldest"
}

# The released command: static, in an archive, in an empty container, installed by cargo, and in a wheel.
stage_static() { tests/release.py --target-dir "$root/target"; }

# Zoned devices on the kernel's null_blk, in a small guest.
stage_null_blk() {
    can_boot || { echo "skipped: there is no qemu-system-x86_64 or no busybox" && return; }
    tests/null_blk.py
}

# Tests of the scripts, the source tree and the shipped files.
stage_scripts() { python3 -m unittest discover -v -s tests; }

# Placement on a real libvirt with software emulation, in namespaces of the test's own.
stage_libvirt() {
    tests/libvirt.py --longma "$longma" && tests/libvirt_memory.py --longma "$longma" && tests/libvirt_migrate.py --longma "$longma"
}

# The same in an emulated guest with four NUMA nodes, which shows that pages move. Takes many minutes.
stage_nodes() { tests/libvirt_nodes.py --longma "$longma"; }

# Affinity on a virtual machine with 16 CPUs, 2 sockets and NICs with 16 queues, with real flows. Takes many minutes without KVM.
stage_affinity() { tests/affinity_vm.py --longma "$longma"; }

# Placement on a PostgreSQL server of the test's own, with two services on one database.
stage_postgres() { tests/postgres.py --longma "$longma"; }

# Placement under kill -9, a jumping clock and a full disk; its API against its own OpenAPI document.
stage_placement() {
    tests/placement_kills.py --longma "$longma" --kills 30 || return 1
    tests/placement_odd.py --longma "$longma" || return 1
    tests/placement_api.py --longma "$longma"
}

# Every shipped guest program at every level, against its expected output.
stage_guests() { tests/guests.py --levels --emulator "$run"; }

# Every key of every machine file changes some result.
stage_keys() { tests/machine_keys.py --longma "$longma"; }

# Campaigns of experiments: killed, resumed, sharded, merged, interrupted.
stage_experiments() { tests/experiments.sh "$longma"; }

# The quick forms of these experiments take half of the time of all.
long_experiments="affinity-flows affinity-model affinity-offloads affinity-offloads-explained affinity-offloads-pairs affinity-settings"
long_experiments+=" latency-hygon leaky-dma placement-stream stream-3a4000 vm-switch"

# The pages in a browser: every kind of chart, the report of the experiments in their quick form, placement's page.
stage_browser() {
    local charts=$root/target/every-chart.html names
    LONGMA_REPORT=$charts cargo test -q --workspace --locked --test report && tests/browser.py "$charts" || return 1
    names=$(cd experiments && printf '%s\n' *.toml | sed 's/\.toml$//' | grep -vxF "${long_experiments// /$'\n'}")
    # shellcheck disable=SC2086 # One word per experiment.
    quick_report $names || return 1
    tests/placement_page.py --longma "$longma"
}

# The other experiments in their quick form.
stage_all_experiments() {
    # shellcheck disable=SC2086 # One word per experiment.
    quick_report $long_experiments
}

# quick_report NAME...: runs experiments and looks at their report in a browser.
quick_report() {
    local report=$root/target/report.html
    "$longma" experiment run "$@" --quick --store target/results &&
        "$longma" experiment report "$@" --quick --store target/results -o "$report" && tests/browser.py "$report"
}

# The Python package, installed into a separate environment.
stage_python() {
    local folder=$root/target/python
    [ -x "$folder/bin/python" ] || python3 -m venv "$folder" || return 1
    MATURIN_PEP517_ARGS="--profile dev" lint_too "$folder/bin/pip" install -q './python[test]' || return 1
    # From another folder, so that the installed package is tested and not the sources.
    (cd "$folder" && LONGMA=$longma bin/python -m unittest discover -v -s "$root/python/tests")
}

# The prebuilt guest programs have their checksums, and one of each kind is what its source gives, bit for bit.
stage_rebuild() {
    (cd guests/prebuilt && sha256sum --check --quiet SHA256SUMS) || return 1
    guests/build --check --only matmul || return 1
    tests/plugin_samples.py
}

# All prebuilt guest programs are what their sources give, and bench/spec builds and runs programs for all architectures.
stage_rebuild_all() { guests/build --check && LONGMA_LONG_TESTS=1 python3 -m unittest discover -v -s tests -p test_spec.py; }

# System calls of each architecture, against the same programs on the host.
stage_calls() { tests/calls.py --emulator "$run"; }

# gdb on programs of each architecture; single steps compared with the host or QEMU.
stage_gdb() { tests/gdb.py --emulator "$run" --boot "$(printf '%q' "$longma") boot"; }

# Debian's programs for LoongArch, and esbuild; skipped where they cannot be downloaded.
stage_packages() { tests/packages.py --emulator "$run"; }

# Others' programs and their own tests, for x86-64 and AArch64, with an optimized command. Downloads 1 GB.
stage_programs() {
    cargo build --release --locked -p longma-cli --target-dir "$root/target" || return 1
    tests/programs.py --architecture amd64 --architecture arm64
}

# The kernel's own tests of system calls, next to the host and QEMU.
stage_selftests() {
    cargo build --release --locked -p longma-cli --target-dir "$root/target" || return 1
    tests/selftests.py
}

# Dynamically linked programs with the C libraries of each architecture.
stage_dynamic() { tests/dynamic.py --emulator "$run"; }

# Tests of Go's standard library. Two of os/signal's start the host's nohup, which cannot start a guest's program; QEMU's user mode fails
# them too, so Longma must pass what QEMU passes in the same run.
stage_go() { PATH="$PATH:/usr/local/go/bin" tests/go_std.py --qemu --emulator "$run"; }

# Debian's kernel for LoongArch boots to a shell on Longma's machine.
stage_system() {
    tests/system_boot.py --boot "$(printf '%q' "$longma") boot"
}

# Checks that the benchmarks run, in their smallest form and without checking speeds. The standalone ones are not optimized.
stage_bench() {
    bench/emulation --small --runs 1 --longma "$longma" || return 1
    bench/simulation --small --runs 1 --longma "$longma" || return 1
    lint_too cargo run -q --locked --manifest-path bench/via/Cargo.toml -- --rounds 1 --only '8 bytes' || return 1
    lint_too cargo run -q --locked --manifest-path bench/zoned/Cargo.toml --no-default-features -- \
        --small --engine longma --engine lmdb --shape 16-100 --durability synced --no-memory-limit
}

# Checks the promised speeds, some of them relative to other emulators. Needs an otherwise idle machine.
stage_measure() {
    cargo build --release --locked -p longma-cli --target-dir "$root/target" || return 1
    local released=$root/target/release/longma
    bench/emulation --check --longma "$released" && bench/simulation --check --longma "$released"
}

# The libfabric provider in Debian's libfabric: its own C programs, fi_info, fi_pingpong, and an MPI program.
stage_libfabric() {
    [ -e /usr/include/rdma/providers/fi_prov.h ] && command -v fi_pingpong mpicc mpirun >/dev/null ||
        { echo "skipped: there is no libfabric or no Open MPI" && return; }
    if cargo nextest --version >/dev/null 2>&1; then
        # From the build of the whole workspace.
        cargo nextest run --workspace --locked --run-ignored only -E 'package(longma-libfabric) & binary(programs)'
    else
        cargo test -p longma-libfabric --locked --test programs --no-fail-fast -- --ignored --test-threads 2
    fi
}

# The commands in the book and the README.
stage_book() {
    local python=$root/target/python/bin/python
    [ -x "$python" ] || stage_python || return 1
    tests/book.py --longma "$longma" --python "$python" || return 1
    if [ -n "${LONGMA_MDBOOK:-}" ]; then
        $LONGMA_MDBOOK build docs
    else
        echo "skipped: the book was not built, only its commands were run: cargo install --locked mdbook"
    fi
}

# Searches for inputs that fail the fuzz targets, with coverage. `unit` runs the targets on their seeds and on mutations of these.
stage_fuzz() { fuzz/campaign --seconds 60 --seed "$PROPTEST_RNG_SEED"; }

# longma-via's accesses to shared memory: its tests under the address sanitizer, and under Miri those without system calls that Miri lacks
# (membarrier in the lock, loom's model). Miri is hundreds of times slower, so its cases are few.
stage_sanitizers() {
    local host=x86_64-unknown-linux-gnu
    rustup component add --toolchain nightly miri rust-src || return 1
    # Tests leak mappings on purpose. Three tests are skipped: one measures resident memory, which the sanitizer keeps after a free, and two
    # compare costs, to which the sanitizer adds its own.
    ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS=-Zsanitizer=address cargo +nightly test --locked --target "$host" \
        --target-dir "$CARGO_TARGET_DIR/asan" -p longma-via --lib --test memory --test pairs --test trust --test conformance \
        --test killed --test completion_queue --test forked --test retired -- --skip a_peer_that_requests_reads_but_takes_no_answers \
        --skip the_cost_of_a_completion || return 1
    MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks" PROPTEST_CASES=8 cargo +nightly miri test --locked -p longma-via --lib -- \
        --skip lock_tests engine:: shared_bytes:: shared_memory::ring_tests shared_memory::control_message datagram::message
}

# advice STAGE: what to do when it fails, besides reading its log.
advice() {
    case $1 in
    format) echo "run cargo fmt --all, and cargo fmt in the folder that is named" ;;
    fresh) echo "cargo build -v says 'Dirty' and why; a build script may watch a path that does not exist" ;;
    deny) echo "deny.toml has the rules" ;;
    oldest) echo "raise rust-version in Cargo.toml and python/Cargo.toml, or avoid what that compiler lacks" ;;
    rebuild | rebuild_all) echo "guests/build rebuilds the programs; it installs the pip package ziglang" ;;
    gdb) echo "tests/gdb.py --only ARCHITECTURE runs one architecture" ;;
    calls) echo "tests/calls.py --only NAME --level LEVEL runs one program" ;;
    packages) echo "tests/packages.py --only NAME runs one program; tests/packages.toml has the expected output" ;;
    programs) echo "tests/programs.py --only NAME --show 2000 runs one program; target/programs/table.md has the table" ;;
    selftests) echo "tests/selftests.py --only NAME --show runs one test" ;;
    dynamic) echo "tests/dynamic.py --help says how to run one library alone" ;;
    go) echo "tests/go_std.py PACKAGE --run TEST runs one test" ;;
    system) echo "tests/system_boot.py --qemu PROGRAM boots the same on QEMU; target/system_boot has kernel and RAM disk" ;;
    measure) echo "a busy machine misses the promised speeds too: run it alone; docs/src/results has the last figures" ;;
    sanitizers) echo "it needs a nightly compiler (rustup toolchain install nightly)" ;;
    nodes) echo "tests/libvirt_nodes.py runs it alone, and target/guest/nodes.log has the guest's output; a busy machine may be too slow" ;;
    affinity) echo "tests/affinity_vm.py --only WORD runs one check, and target/guest/affinity.log has the guest's output" ;;
    keys) echo "tests/machine_keys.py --verbose --only KEY prints the effect of a key; a key without effect must be implemented or removed" ;;
    book) echo "tests/book.py --only CHAPTER runs one chapter; a comment before a block excludes it or relaxes the comparison" ;;
    fuzz) echo "the failing input is in $CARGO_TARGET_DIR/fuzz; run the target with it as its argument" ;;
    *) echo "run it alone with ./test $1" ;;
    esac
}
