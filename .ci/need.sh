# Installs what `run` and `test` need with the system's package manager, or says in one line what to do. Both source it.
# Source: Cargo.toml has the oldest Rust version that compiles Longma (rust-version).

# Prints a line on standard error, with the script's name in front.
say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# Prints what is wrong and what to do, and exits.
give_up() {
    say "$*"
    exit 1
}

# Runs a command as root, with sudo if necessary.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        say "needs root or sudo for: $*"
        return 1
    fi
}

# Tries three times: a mirror that is being updated, or another running apt, is usually done within a minute.
install_by_apt() {
    local attempt
    for attempt in 1 2 3; do
        # A new container has no package lists, and the lists of an old one name packages that no longer exist.
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60 update >&2 || true
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60 install -y --no-install-recommends "$@" >&2 && return
        [ "$attempt" = 3 ] || { say "trying again in 20 s" && sleep 20; }
    done
    return 1
}

# install_packages PACKAGE...: installs packages with the package manager of this system. Fails if that is not possible.
install_packages() {
    say "installing $*"
    if command -v apt-get >/dev/null; then
        install_by_apt "$@"
    elif command -v dnf >/dev/null; then
        as_root dnf -q -y install "$@" >&2
    elif command -v zypper >/dev/null; then
        as_root zypper -n -q install "$@" >&2
    elif command -v pacman >/dev/null; then
        as_root pacman -S --noconfirm --needed "$@" >&2
    elif command -v apk >/dev/null; then
        as_root apk add -q "$@" >&2
    else
        say "no package manager known here"
        return 1
    fi
}

# True if version $1 is at least version $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# The oldest supported Rust version.
oldest_rust() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml"; }

# True if cargo works and is new enough.
rust_is_here() {
    local version
    version=$(cargo --version 2>/dev/null) || return 1
    at_least "$(cut -d ' ' -f 2 <<<"$version")" "$(oldest_rust)"
}

# Finds Rust on the path or in rustup's folder, or installs it with the package manager or rustup.
need_rust() {
    local cargo
    rust_is_here && return
    PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    # With another HOME, rustup's cargo does not find its toolchains, which are in a folder next to its own.
    cargo=$(command -v cargo || true)
    if [ -z "${RUSTUP_HOME:-}" ] && [ -n "$cargo" ] && [ -d "${cargo%/.cargo/bin/cargo}/.rustup/toolchains" ]; then
        export RUSTUP_HOME="${cargo%/.cargo/bin/cargo}/.rustup"
    fi
    rust_is_here && return
    if ! command -v rustup >/dev/null; then
        install_packages rust cargo >/dev/null 2>&1 || install_packages rustup >/dev/null 2>&1 || true
    fi
    if ! rust_is_here && command -v rustup >/dev/null; then
        say "installing the Rust toolchain with rustup"
        rustup toolchain install stable --profile minimal --component rustfmt --component clippy >&2 &&
            rustup default stable >&2 || true
    fi
    rust_is_here || give_up "needs Rust $(oldest_rust) or later, which the package manager here does not have: follow https://www.rust-lang.org/tools/install"
}

# Installs a C compiler if there is none: cargo links with it.
need_compiler() {
    command -v cc >/dev/null && return
    if command -v apt-get >/dev/null; then
        install_packages gcc libc6-dev || true
    elif command -v apk >/dev/null; then
        install_packages build-base || true
    else
        install_packages gcc || true
    fi
    command -v cc >/dev/null || give_up "needs a C compiler named cc: install gcc with the system's package manager"
}

# Translated code needs Linux on x86-64.
need_host() {
    [ "$(uname -s)" = Linux ] && [ "$(uname -m)" = x86_64 ] ||
        give_up "runs on Linux on x86-64 only; this is $(uname -s) on $(uname -m)"
}
