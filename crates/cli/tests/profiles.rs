//! Call stacks of `--stacks-out`, and the prediction of returns in translated code.

mod programs;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use longma_run_results::pprof::messages::Profile;
use programs::*;
use prost::Message;
use serde_json::Value;
use tempfile::tempdir;

const ARCHITECTURES: [&str; 4] = ["loongarch64", "x86_64", "aarch64", "mips64el"];

fn prebuilt(architecture: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt").join(architecture).join(name)
}

#[test]
fn call_stacks_are_sampled_for_every_architecture_and_are_the_same_every_time() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("stacks");
    for architecture in ARCHITECTURES {
        let sampled = || {
            let output =
                finish(longma_run().arg("--stacks-out").arg(&out).arg(prebuilt(architecture, "fft")));
            assert!(output.status.success(), "{architecture}: {}", text(&output.stderr));
            fs::read_to_string(&out).unwrap()
        };
        let stacks = sampled();
        let transform = stacks.lines().find(|line| line.contains(";main;transform ")).expect(&stacks);
        let instructions: u64 = transform.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(instructions > 50_000_000, "{architecture}: {stacks}");
        assert_eq!(sampled(), stacks, "{architecture}");
    }
    let image = folder.path().join("stacks.svg");
    let output = finish(longma_run().arg("--stacks-out").arg(&image).arg(prebuilt("aarch64", "fft")));
    assert!(output.status.success());
    let image = fs::read_to_string(image).unwrap();
    assert!(image.starts_with("<svg") && image.contains("<title>transform: "), "{image}");
}

#[test]
fn call_stacks_are_sampled_in_simulated_time() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("stacks");
    for level in ["cache", "timing"] {
        for architecture in ["loongarch64", "x86_64"] {
            let mut command = longma_run();
            command.args(["--level", level, "--quiet", "--stacks-every", "1000", "--stacks-out"]).arg(&out);
            let output = finish(command.arg(prebuilt(architecture, "fft")).args(["8", "3"]));
            assert!(output.status.success(), "{level} {architecture}: {}", text(&output.stderr));
            let stacks = fs::read_to_string(&out).unwrap();
            assert!(stacks.contains(";main"), "{level} {architecture}: {stacks}");
        }
    }
}

/// A thread calls `outer`, into which `inner` is inlined at line 7.
const INLINED: &str = r#"
#include <pthread.h>
static inline __attribute__((always_inline)) unsigned inner(unsigned n) {
    for (unsigned i = 0; i < 1000; i++) n = n * 1664525 + (n >> 3) + i;
    return n;
}
__attribute__((noinline)) unsigned outer(unsigned n) { return inner(n) + 1; }
static void *work(void *unused) {
    unsigned n = 1;
    for (int i = 0; i < 3000; i++) n = outer(n);
    return (void *)(unsigned long)(n & 1);
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    return pthread_join(thread, 0);
}
"#;

#[test]
fn a_profile_for_pprof_has_lines_inlined_functions_and_threads() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("stacks.pb.gz");
    for compiler in ["cc", "aarch64-linux-gnu-gcc"] {
        let program = folder.path().join(compiler);
        if !compile(compiler, INLINED, &program) {
            assert_ne!(compiler, "cc", "the program does not compile");
            continue;
        }
        let output = finish(longma_run().arg("--stacks-out").arg(&out).arg(&program));
        assert!(output.status.success(), "{compiler}: {}", text(&output.stderr));
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(fs::File::open(&out).unwrap()).read_to_end(&mut bytes).unwrap();
        let profile = Profile::decode(&*bytes).unwrap();
        let named = |index: i64| profile.string_table[index as usize].as_str();
        let hottest = profile.sample.iter().max_by_key(|sample| sample.value[0]).unwrap();
        let lines: Vec<_> = hottest
            .location_id
            .iter()
            .flat_map(|id| &profile.location[*id as usize - 1].line)
            .map(|line| (named(profile.function[line.function_id as usize - 1].name), line.line))
            .collect();
        assert!(
            matches!(lines[..], [("inner", 3 | 4), ("outer", 7), ("work", 10), ..]),
            "{compiler}: {lines:?}"
        );
        assert_eq!(named(hottest.label[0].key), "thread", "{compiler}");
        assert!(profile.mapping.iter().any(|mapping| named(mapping.filename).ends_with(compiler)));
    }
}

/// Writes code into memory that is mapped twice, as compilers do that never have memory both writable and executable,
/// and its name into the map for perf.
const JUST_IN_TIME: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static const unsigned char code[] = {0x89, 0xf8, 0xff, 0xc8, 0x75, 0xfc, 0xc3}; /* mov eax, edi; 1: dec eax; jnz 1b; ret */
int main(void) {
    int file = memfd_create("code", 0);
    if (ftruncate(file, 4096)) return 1;
    void *written = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void *executed = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
    memcpy(written, code, sizeof code);
    char name[64];
    sprintf(name, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(name, "w");
    fprintf(map, "%lx %zx compiled just in time\n", (unsigned long)executed, sizeof code);
    fclose(map);
    return ((int (*)(int))executed)(20000000);
}
"#;

#[test]
fn code_that_a_just_in_time_compiler_maps_twice_has_names() {
    let folder = tempdir().unwrap();
    let (program, out) = (folder.path().join("program"), folder.path().join("stacks"));
    assert!(compile("cc", JUST_IN_TIME, &program));
    let mut command = longma_run();
    command.arg("--stacks-out").arg(&out).arg(&program).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let map = format!("/tmp/perf-{}.map", child.id());
    let output = output(child);
    fs::remove_file(map).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stacks = fs::read_to_string(&out).unwrap();
    assert!(stacks.contains("compiled just in time "), "{stacks}");
}

#[test]
fn stacks_that_cannot_be_written_are_an_error() {
    let output = finish(longma_run().args(["--stacks-out", "/dev/full"]).arg(guest("fft")));
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("cannot write the call stacks"), "{}", text(&output.stderr));
}

/// Calls functions of the C library from call sites whose continuations are translated separately.
const PRINTING: &str = r#"
#include <stdio.h>
int main(void) {
    char text[64];
    volatile double number = 3.14159;
    int length = 0;
    for (int i = 0; i < 400; i++) length += snprintf(text, sizeof text, "%.3f", number + i);
    return length != 2696;
}
"#;

/// Compiles a C program with a static C library. Returns false if the compiler is missing.
fn compile(compiler: &str, source: &str, to: &Path) -> bool {
    let mut command = Command::new(compiler);
    command.args(["-O2", "-g", "-static", "-pthread", "-x", "c", "-", "-o"]).arg(to);
    let child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: {compiler} is missing");
        return false;
    };
    child.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    child.wait().unwrap().success()
}

#[test]
fn returns_of_translated_code_are_predicted() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("out.json");
    // The share depends on the C library.
    for (compiler, most_percent) in [("cc", 3), ("aarch64-linux-gnu-gcc", 8)] {
        let program = folder.path().join(compiler);
        if !compile(compiler, PRINTING, &program) {
            continue;
        }
        let mut command = longma_run();
        command.args(["--level", "timing", "--quiet", "--stats-out"]).arg(&out).arg(&program);
        let output = finish(&mut command);
        assert!(output.status.success(), "{compiler}: {}", text(&output.stderr));
        let result: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
        let count = |name: &str| {
            result["statistics"]["core0"]["branch"][name]["value"]
                .as_u64()
                .unwrap_or_else(|| panic!("{result}"))
        };
        let (returns, mispredicted) = (count("returns"), count("returns_mispredicted"));
        assert!(returns > 10_000, "{compiler}: {returns}");
        assert!(mispredicted * 100 < returns * most_percent, "{compiler}: {mispredicted} of {returns}");
    }
}
