# What `run` and `test` share: making sure that the machine has what they need.
# Not a package manager: it asks the system's own, and says in one line what to do where that fails.
# Source: Cargo.toml names the oldest Rust that compiles Longma (rust-version). To be read by bash with `source`.

# Prints a line on standard error, under the script's name.
say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# Says what is wrong and what to do, and ends.
give_up() {
    say "$*"
    exit 1
}

# Runs a command with the rights to install.
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

# A mirror that is being renewed, or another apt at work, is over in a minute: three attempts.
install_by_apt() {
    local attempt
    for attempt in 1 2 3; do
        # The lists of a fresh container are empty; those of an old one name packages that are gone.
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60 update >&2 || true
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60 install -y --no-install-recommends "$@" >&2 && return
        [ "$attempt" = 3 ] || { say "trying again in 20 s" && sleep 20; }
    done
    return 1
}

# install_packages PACKAGE...: by Debian's names, with whichever package manager is here. False where that fails.
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

# The oldest Rust that will do.
oldest_rust() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml"; }

# True if there is a cargo that works and is new enough.
rust_is_here() {
    local version
    version=$(cargo --version 2>/dev/null) || return 1
    at_least "$(cut -d ' ' -f 2 <<<"$version")" "$(oldest_rust)"
}

# Rust: the one on the path, rustup's, or one from the system.
need_rust() {
    local cargo
    rust_is_here && return
    PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    # With another HOME, rustup's cargo does not find its own toolchains, which lie beside it.
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

# A C compiler: cargo links with it.
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

# The processor and the system that translated code is for.
need_host() {
    [ "$(uname -s)" = Linux ] && [ "$(uname -m)" = x86_64 ] ||
        give_up "runs on Linux on x86-64 only; this is $(uname -s) on $(uname -m)"
}
