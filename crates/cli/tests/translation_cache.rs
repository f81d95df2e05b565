//! Tests persistent translations: results with and without them are the same, even if the program or the cache files
//! have changed.

mod programs;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use programs::*;
use tempfile::{TempDir, tempdir};

const COMPILERS: [&str; 3] = ["cc", "aarch64-linux-gnu-gcc", "mips64el-linux-gnuabi64-gcc"];

/// A program for each architecture with a compiler.
struct Programs {
    folder: TempDir,
    compilers: Vec<&'static str>,
}

impl Programs {
    fn new() -> Self {
        let folder = tempdir().unwrap();
        let mut programs = Self { folder, compilers: Vec::new() };
        let is_there = |compiler: &&str| programs.compile(compiler, 1);
        programs.compilers = COMPILERS.into_iter().filter(is_there).collect();
        programs
    }

    fn path(&self, compiler: &str) -> PathBuf {
        self.folder.path().join(compiler)
    }

    fn compile(&self, compiler: &str, value: u32) -> bool {
        if compiler == "cc" && !cfg!(target_arch = "x86_64") {
            return false;
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/cached.c");
        let mut command = Command::new(compiler);
        command.args(["-O2", "-w", "-static", &format!("-DVALUE={value}")]).arg(source);
        let works =
            command.arg("-o").arg(self.path(compiler)).output().is_ok_and(|output| output.status.success());
        if !works {
            eprintln!("skipped: there is no {compiler} that links programs statically");
        }
        works
    }

    /// The output of a program; it must show `value`.
    fn run(&self, compiler: &str, cache: &Path, value: u32) -> String {
        let program = self.path(compiler);
        let output = finish(longma_run().arg("--translation-cache").arg(cache).arg(program));
        let printed = text(&output.stdout);
        assert_eq!(
            (text(&output.stderr), output.status.code()),
            (String::new(), Some(0)),
            "{compiler}: {printed}"
        );
        assert!(printed.starts_with(&format!("value {value},")), "{compiler}: {printed}");
        printed
    }
}

fn files(cache: &Path) -> Vec<PathBuf> {
    fs::read_dir(cache)
        .map_or_else(|_| Vec::new(), |found| found.map(|entry| entry.unwrap().path()).collect())
}

/// The only file in the cache.
fn only_file(cache: &Path) -> PathBuf {
    let found = files(cache);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

#[test]
fn restarted_and_changed_programs_behave_correctly() {
    let programs = Programs::new();
    for compiler in &programs.compilers {
        let folder = tempdir().unwrap();
        let cache = folder.path().join("a/cache");
        let mut printed = Vec::new();
        for value in [1, 2, 1] {
            assert!(programs.compile(compiler, value));
            printed.push(programs.run(compiler, &cache, value));
            let file = only_file(&cache);
            // Later runs use the units stored by the first ones, and add hardly any.
            for _ in 0..5 {
                assert_eq!(programs.run(compiler, &cache, value), printed[printed.len() - 1]);
            }
            let kept = fs::metadata(&file).unwrap().ino();
            for _ in 0..2 {
                assert_eq!(programs.run(compiler, &cache, value), printed[printed.len() - 1]);
                assert_eq!(fs::metadata(only_file(&cache)).unwrap().ino(), kept, "{compiler}");
            }
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
            assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o777, 0o700);
        }
        assert_eq!(printed[0], printed[2]);
    }
}

#[test]
fn storing_translations_stops_all_threads() {
    let folder = tempdir().unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let built = |source: &str, options: &[&str]| {
        let output = folder.path().join(source).with_extension("");
        let mut command = Command::new("cc");
        command.args(["-O2", "-w"]).args(options).arg(sources.join(source)).arg("-o").arg(&output);
        command.output().is_ok_and(|output| output.status.success()).then_some(output)
    };
    let program = built("exited.c", &["-static"]).filter(|_| cfg!(target_arch = "x86_64"));
    let (Some(program), Some(slow_rename)) = (program, built("slow_rename.c", &["-shared", "-fPIC"])) else {
        eprintln!("skipped: there is no compiler that links programs statically");
        return;
    };
    for number in 0..2 {
        let cache = folder.path().join(number.to_string());
        let mut command = longma_run();
        command.env("LD_PRELOAD", &slow_rename).arg("--translation-cache").arg(&cache).arg(&program);
        let printed = text(&finish(&mut command).stdout);
        assert_eq!(files(&cache).len(), 1);
        let (before, behind) = printed.split_once("storing").expect("the cache file is renamed into place");
        assert!(before.contains("end"), "the program has exited");
        // The thread may have been about to write when it was asked to stop.
        assert!(behind.len() <= 1, "{behind}");
    }
}

#[test]
fn a_damaged_cache_file_does_not_change_results() {
    let programs = Programs::new();
    let Some(compiler) = programs.compilers.first() else { return };
    let folder = tempdir().unwrap();
    let cache = folder.path().join("cache");
    let printed = programs.run(compiler, &cache, 1);
    let file = only_file(&cache);
    let intact = fs::read(&file).unwrap();
    let with = |bytes: &[u8]| {
        let _ = fs::remove_file(&file);
        fs::write(&file, bytes).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(programs.run(compiler, &cache, 1), printed);
        // A useless file has been replaced by a valid one.
        assert!(fs::metadata(only_file(&cache)).unwrap().len() > intact.len() as u64 / 2);
    };
    for length in [0, 7, 40, 48, 56, 1000, intact.len() / 2, intact.len() - 1] {
        with(&intact[..length]);
    }
    for number in 0..24 {
        let mut changed = intact.clone();
        let place = number * (intact.len() - 1) / 23;
        changed[place] ^= 1 << (number % 8);
        with(&changed);
    }
    with(&[&intact[..], b"more"].concat());
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, &intact).unwrap();
    fs::remove_file(&file).unwrap();
    symlink(&elsewhere, &file).unwrap();
    assert_eq!(programs.run(compiler, &cache, 1), printed);
    assert_eq!(fs::read(&elsewhere).unwrap(), intact);
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    assert_eq!(programs.run(compiler, &cache, 1), printed);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(programs.run(compiler, &cache, 1), printed);
    assert_eq!(files(&cache), [file], "what could not be put in its place is gone");
}

#[test]
fn a_shared_or_unusable_cache_folder_is_ignored() {
    let programs = Programs::new();
    let Some(compiler) = programs.compilers.first() else { return };
    let folder = tempdir().unwrap();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    programs.run(compiler, &open, 1);
    assert_eq!(files(&open).len(), 0);
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for place in [&file, &file.join("below"), Path::new("none"), Path::new("/proc/1/x")] {
        programs.run(compiler, place, 1);
    }
    assert!(!Path::new("none").exists());
}

#[test]
fn translations_are_stored_only_in_a_given_folder() {
    let programs = Programs::new();
    let Some(compiler) = programs.compilers.first() else { return };
    let folder = tempdir().unwrap();
    let [home, cache, named] = ["home", "cache", "named"].map(|name| folder.path().join(name));
    let run = |options: &[&str], variable: Option<&Path>| {
        let mut command = longma_run();
        command.current_dir(&folder).env_remove("LONGMA_TRANSLATION_CACHE").env("HOME", &home);
        command.env("XDG_CACHE_HOME", &cache).args(options).arg(programs.path(compiler));
        command.envs(variable.map(|value| ("LONGMA_TRANSLATION_CACHE", value)));
        let output = finish(&mut command);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    };
    let named_option = ["--translation-cache", named.to_str().unwrap()];

    // Off by default, and off when code is counted, interpreted or simulated.
    run(&[], None);
    run(&["--translation-cache", ""], None);
    run(&["--translation-cache", "none"], Some(&named));
    run(&[], Some(Path::new("")));
    for option in [&["--stats"][..], &["--interpret"], &["--level", "cache"]] {
        run(&[&named_option[..], option].concat(), None);
    }
    for place in [&home, &cache, &named, &folder.path().join("none")] {
        assert!(!place.exists(), "{}", place.display());
    }

    run(&named_option, None);
    assert_eq!(files(&named).len(), 1);
    run(&[], Some(&home));
    assert_eq!(files(&home).len(), 1);
    run(&["--translation-cache", "here"], None);
    assert_eq!(files(&folder.path().join("here")).len(), 1);
}
