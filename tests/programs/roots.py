"""Root folders with Debian's packages for an architecture, sources, wheels and Go's tools.

A .lock file has the SHA-256 and path in Debian's archive of each package. Scripts of packages are not run;
what they would do is done here where a program needs it.
"""

import concurrent.futures
import hashlib
import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

import packages

BUILT = ROOT / "target" / "programs"
DOWNLOADS_AT_ONCE = 8
USERS = ["root:0:/root", "www-data:33:/var/www", "redis:101:/var/lib/redis", "postgres:102:/var/lib/postgresql", "nobody:65534:/nonexistent"]
TRIPLETS = {"amd64": "x86_64", "arm64": "aarch64", "mips64el": "mips64el", "loong64": "loongarch64"}


def locked(name):
    """The packages of a lock file, as (path, SHA-256)."""
    lines = (HERE / f"{name}.lock").read_text().splitlines()
    return [tuple(reversed(line.split(" ", 1))) for line in lines if line and not line.startswith("#")]


def fetch(pins):
    """The files of packages, in their order."""
    def one(pin):
        kept = packages.BUILT / "debian" / pin[0].rsplit("/", 1)[-1]
        packages.fetch_package(*pin, kept)
        return kept

    with concurrent.futures.ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as several:
        return list(several.map(one, pins))


def link(folder, name, target):
    path = folder / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def finish(folder, architecture):
    """Does what the scripts of packages would."""
    libraries = folder / "usr/lib" / next((path.name for path in (folder / "usr/lib").glob(f"{TRIPLETS[architecture]}-linux-gnu*")), ".")
    for name in ("blas/libblas.so.3", "lapack/liblapack.so.3"):
        if (libraries / name).exists():
            link(libraries, name.rsplit("/", 1)[-1], name)
    for name, wanted in {"awk": "gawk", "sh": "dash", "cc": "gcc-[0-9]*", "gcc": "gcc-[0-9]*", "c++": "g++-[0-9]*", "g++": "g++-[0-9]*", "clang": "clang-[0-9]*",
                         "tclsh": "tclsh[0-9]*", "lua": "lua5*", "php": "php[0-9]*"}.items():  # fmt: skip
        found = sorted(path.name for path in (folder / "usr/bin").glob(wanted) if "+" not in path.name or "+" in wanted)
        if found:
            link(folder / "usr/bin", name, found[0])
    (folder / "etc/passwd").write_text("".join("{0}:x:{1}:{1}:{0}:{2}:/bin/sh\n".format(*user.split(":")) for user in USERS))
    groups = [*USERS, "nogroup:65534"]
    (folder / "etc/group").write_text("".join("{0}:x:{1}:\n".format(*user.split(":")) for user in groups))
    (folder / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    (folder / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")


def debian(architecture):
    """A root folder with all packages of the architecture's lock file."""
    folder, stamp = BUILT / architecture / "root", BUILT / architecture / "root.stamp"
    identity = hashlib.sha256((HERE / f"{architecture}.lock").read_bytes() + inspect.getsource(finish).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == identity:
        return folder
    archives = fetch(locked(architecture))
    shutil.rmtree(folder, ignore_errors=True)
    for part in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "tmp", "etc", "scratch", "root"]:
        (folder / part).mkdir(parents=True)
    for merged in packages.MERGED:
        (folder / merged).symlink_to(f"usr/{merged}")
    for archive in archives:
        packages.unpack(archive.read_bytes(), folder)
    finish(folder, architecture)
    stamp.write_text(identity)
    return folder


def once(folder, identity, make):
    """Makes a folder unless it was made from the same."""
    stamp = folder.with_suffix(".stamp")
    if not stamp.exists() or stamp.read_text() != identity:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        stamp.write_text(identity)
    return folder


def sources():
    """A layer with the unpacked sources in /src."""
    def make(folder):
        for archive in fetch(locked("sources")):
            with tarfile.open(archive) as files:
                files.extractall(folder / "src", filter="tar")

    return once(BUILT / "sources", hashlib.sha256((HERE / "sources.lock").read_bytes()).hexdigest(), make)


def wheels(architecture):
    """A layer with Python's packages in /wheels."""
    pins = HERE / "wheels.txt"
    platforms = [f"--platform={tag}_{TRIPLETS[architecture]}" for tag in ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014")]

    def make(folder):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version=3.13",
                   *platforms, f"--target={folder / 'wheels'}", "-r", pins]  # fmt: skip
        made = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if made.returncode != 0:
            raise packages.Absent(f"wheels for {architecture}: {made.stderr.strip()[-300:]}")

    return once(BUILT / architecture / "wheels", hashlib.sha256(pins.read_bytes()).hexdigest(), make)


def go(architecture):
    """A layer with Go for this architecture in /usr/local/go, built by the Go that is installed."""
    command = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if command is None:
        raise packages.Absent("Go is not installed")
    plain = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local"}
    version, goroot = subprocess.run([command, "env", "GOVERSION", "GOROOT"], capture_output=True, text=True, timeout=60, check=True, env=os.environ | plain).stdout.split()
    names = {"mips64el": "mips64le"}
    target = plain | {"GOOS": "linux", "GOARCH": names.get(architecture, architecture)}

    def make(folder):
        tree = folder / "usr/local/go"
        tools = tree / "pkg/tool" / f"linux_{target['GOARCH']}"
        tools.mkdir(parents=True)
        shutil.copytree(f"{goroot}/src", tree / "src", ignore=shutil.ignore_patterns("*_test.go", "testdata"), symlinks=True)
        for name in ("go.env", "VERSION"):
            if os.path.exists(f"{goroot}/{name}"):
                shutil.copy(f"{goroot}/{name}", tree / name)
        shutil.copytree(f"{goroot}/pkg/include", tree / "pkg/include", dirs_exist_ok=True)
        for package, place in {"go": tree / "bin/go", **{name: tools / name for name in ("asm", "compile", "link", "vet")}}.items():
            subprocess.run(["nice", command, "build", "-p", "2", "-o", place, f"cmd/{package}"], check=True, timeout=900, env=os.environ | target, capture_output=True)

    return once(BUILT / architecture / "go", version, make)
