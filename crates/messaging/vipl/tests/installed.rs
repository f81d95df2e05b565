//! The library is installed into an empty prefix, and the example is compiled against that installation alone, as a
//! user would.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("a process");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{error}");
    output
}

fn text(output: Output) -> String {
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Installs the libraries that were built for this test.
fn install(prefix: &Path, options: &[&str]) {
    let own = std::env::current_exe().expect("a path");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install");
    run(Command::new(script)
        .arg("--prefix")
        .arg(prefix)
        .arg("--built")
        .arg(own.parent().unwrap())
        .args(options));
}

/// Runs `pkg-config` on this installation only.
fn pkg_config(libdir: &Path, options: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env_clear().env("PATH", "/usr/bin:/bin").env("PKG_CONFIG_LIBDIR", libdir.join("pkgconfig"));
    text(run(command.args(options).arg("vipl"))).split_whitespace().map(String::from).collect()
}

/// Compiles the example in another folder, with only the options of `pkg-config`.
fn compile(folder: &Path, options: &[String]) -> std::path::PathBuf {
    std::fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/ping_pong.c"),
        folder.join("program.c"),
    )
    .unwrap();
    let mut command = Command::new("cc");
    command.current_dir(folder).env_clear().env("PATH", "/usr/bin:/bin");
    run(command
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "program.c", "-o", "program"])
        .args(options));
    folder.join("program")
}

fn plays(program: &Path, libdir: &Path) {
    let name = format!("vipl-installed-{}-{}", std::process::id(), libdir.display().to_string().len());
    let start = |role: &str| {
        let mut command = Command::new("timeout");
        command.env("LD_LIBRARY_PATH", libdir).arg("60").arg(program).args([role, &name, "500"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process")
    };
    for (child, role) in [start("server"), start("client")].into_iter().zip(["server", "client"]) {
        let output = child.wait_with_output().expect("an end");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{role}: 500 rounds\n"), "{output:?}");
    }
}

#[test]
fn the_example_compiles_against_an_installed_library_and_runs() {
    let (prefix, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    install(prefix.path(), &[]);
    let libdir = prefix.path().join("lib");
    let program = compile(work.path(), &pkg_config(&libdir, &["--cflags", "--libs"]));
    let needed = text(run(Command::new("readelf").arg("-d").arg(&program)));
    assert!(needed.contains("[libvipl.so.1]"), "{needed}");
    plays(&program, &libdir);
    let exported =
        text(run(Command::new("nm").args(["-D", "--defined-only"]).arg(libdir.join("libvipl.so"))));
    let names: Vec<_> = exported.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(names.contains(&"VipOpenNic"), "{exported}");
    assert!(names.iter().all(|name| name.starts_with("Vip") || name.starts_with("LongmaVip")), "{exported}");
    assert_eq!(pkg_config(&libdir, &["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    // A second installation replaces the first.
    install(prefix.path(), &[]);
    plays(&program, &libdir);
}

#[test]
fn a_package_can_be_built_in_another_place_and_linked_statically() {
    let (destination, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = destination.path().to_str().unwrap();
    install(Path::new("/usr"), &["--destdir", root, "--libdir", "/usr/lib/here"]);
    let libdir = destination.path().join("usr/lib/here");
    let pc = std::fs::read_to_string(libdir.join("pkgconfig/vipl.pc")).unwrap();
    assert!(
        pc.contains("prefix=/usr\n") && pc.contains("libdir=/usr/lib/here\n") && !pc.contains('@'),
        "{pc}"
    );
    // The paths are those after the package is installed, so they are given here.
    let mut options = vec![format!("-I{root}/usr/include"), libdir.join("libvipl.a").display().to_string()];
    options.extend(pkg_config(&libdir, &["--static", "--libs-only-other"]));
    let libraries = pkg_config(&libdir, &["--static", "--libs-only-l"]);
    options.extend(libraries.into_iter().filter(|library| library != "-lvipl"));
    options.push("-pthread".into());
    plays(&compile(work.path(), &options), Path::new("/nowhere"));
}

#[test]
fn the_manual_page_has_every_function_of_the_header() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(home.join("include/vipl.h")).unwrap();
    let page = std::fs::read_to_string(home.join("man/vipl.3")).unwrap();
    let listed: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(".B ")).collect();
    let functions = header.lines().filter_map(|line| line.strip_prefix("VIP_RETURN ")?.split('(').next());
    let missing: Vec<_> = functions.filter(|name| !listed.contains(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn wrong_options_are_named() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install");
    let cases: [(&[&str], &str); 6] = [
        (&["--prefx", "/x"], "--prefx is not known"),
        (&["--prefix"], "--prefix needs a folder"),
        (&["--prefix", "here"], "not an absolute path"),
        (&["--prefix", "/nowhere/a b"], "would split or change"),
        (&["--prefix", "/nowhere", "--libdir", "/a|b&c"], "would split or change"),
        (&["--prefix", "/nowhere", "--built", "/"], "has no libvipl.a"),
    ];
    for (options, expected) in cases {
        let output = Command::new(&script).args(options).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(expected), "{options:?}: {error}");
    }
}
