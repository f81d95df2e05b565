//! Tests `longma experiment bundle` and `verify`: the contents, a second run that agrees, one that differs, and bundles
//! that are refused.

mod programs;
mod subcommand;

use programs::guest;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use subcommand::{Subcommand, text};
use tempfile::{TempDir, tempdir};

const EXPERIMENT: Subcommand = Subcommand("experiment");

const QUEENS: &str = r#"
format = 1
name = "queens"
title = "Queens"
workload = "program"
machines = ["../machines/mine.toml"]
time_limit = "60 s"
[parameters]
folder = "../programs"
program = "queens"
[sweep]
argument = ["4", "5"]
[metrics.instructions]
unit = "instructions"
[[plots]]
title = "Instructions"
kind = "line"
x = "argument"
"#;

/// A folder with an experiment, its machine file and its program.
struct Study {
    folder: TempDir,
}

impl Study {
    fn new(experiment: &str) -> Self {
        let folder = tempdir().unwrap();
        for name in ["experiments", "machines", "programs"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let study = Self { folder };
        fs::copy(guest("queens"), study.path("programs/queens")).unwrap();
        let machine = "format = 1\nname = \"mine\"\nextends = \"loongson-3a5000\"\n";
        fs::write(study.path("machines/mine.toml"), machine).unwrap();
        fs::write(study.path("experiments/queens.toml"), experiment).unwrap();
        study
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn output(&self, verb: &str, arguments: &[&str]) -> Output {
        let mut command = EXPERIMENT.command(&[verb]);
        command.arg(self.path("experiments/queens.toml")).args(arguments);
        command.arg("--store").arg(self.path("store")).output().unwrap()
    }

    fn success(&self, verb: &str, arguments: &[&str]) -> String {
        let output = self.output(verb, arguments);
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// Writes the bundle `name`.
    fn bundle(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        self.success("bundle", &["--out", path.to_str().unwrap()]);
        path
    }
}

/// Changes the manifest of a bundle that is a folder.
fn change_manifest(bundle: &Path, change: impl FnOnce(&mut Value)) {
    let path = bundle.join("bundle.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(&path, manifest.to_string()).unwrap();
}

/// Lists the file `name` with these bytes.
fn list(manifest: &mut Value, name: &str, bytes: &[u8]) {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    manifest["files"][name] = serde_json::json!({ "sha256": digest, "bytes": bytes.len() });
}

/// Exit status, standard output and standard error of `longma experiment verify`.
fn verify(bundle: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = EXPERIMENT.command(&["verify"]).arg(bundle).args(arguments).output().unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_bundle_is_complete_and_a_second_run_agrees_with_it() {
    let study = Study::new(QUEENS);
    study.success("run", &[]);
    let bundles = ["one.tar", "two.tar.zst", "three"].map(|name| study.bundle(name));
    let again = study.path("again");
    fs::create_dir(&again).unwrap();
    // The bytes do not depend on where and when the bundle is written.
    let out = again.join("one.tar");
    study.success("bundle", &["--out", out.to_str().unwrap()]);
    let folder = &bundles[2];
    for name in [
        "README.md",
        "bundle.json",
        "report.html",
        "figures/queens-1.svg",
        "figures/queens-1.pdf",
        "figures/queens.csv",
        "figures/queens.parquet",
        "files/experiments/queens.toml",
        "files/machines/mine.toml",
        "files/programs/queens",
        "machines/mine.toml",
        "results/segments/bundle.records",
    ] {
        assert!(folder.join(name).is_file(), "{name}");
    }
    let json = |path: &Path| -> serde_json::Value {
        serde_json::from_slice(&fs::read(path.join("bundle.json")).unwrap()).unwrap()
    };
    let manifest = json(folder);
    assert!(manifest["made_by"].as_str().unwrap().starts_with("longma experiment bundle "), "{manifest}");
    assert_eq!(manifest["experiments"][0]["inputs"][0]["name"], "../programs/queens");
    assert_eq!(manifest["experiments"][0]["points"].as_array().unwrap().len(), 2);

    // The originals are not needed.
    for name in ["experiments", "machines", "programs", "store"] {
        fs::remove_dir_all(study.path(name)).unwrap();
    }
    for bundle in &bundles {
        let (status, stdout, errors) = verify(bundle, &[]);
        assert_eq!(status, 0, "{stdout}{errors}");
        assert!(stdout.contains("queens: 2 of 2 points run again, 2 with the same results"), "{stdout}");
        assert!(
            stdout.contains("6 of 6 files of the report are equal to the files made from the results"),
            "{stdout}"
        );
    }
    let key = manifest["experiments"][0]["points"][1]["key"].as_str().unwrap();
    let (status, stdout, _) = verify(folder, &["--only", key, "--format", "json"]);
    let verified: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((status, &verified["experiments"][0]["equal"]), (0, &1.into()));
    let (_, stdout, _) = verify(folder, &["--shard", "1/2"]);
    assert!(stdout.contains("1 of 2 points run again, 1 with"), "{stdout}");
    let (status, stdout, _) = verify(folder, &["--shard", "3/3"]);
    assert_eq!(status, 0, "a part without points: {stdout}");
    assert!(stdout.contains("none of its 2 points are in this part"), "{stdout}");
    assert_eq!(verify(folder, &["--only", "0123"]).0, 2);
    // The unpacked bundle is a store with its experiment.
    let (file, store) = (folder.join("files/experiments/queens.toml"), folder.join("results"));
    let run = EXPERIMENT.command(&["run"]).arg(file).arg("--store").arg(store).output().unwrap();
    assert!(text(&run.stdout).contains("0 points run, 2 reused"), "{}", text(&run.stdout));
}

/// The folder of the sample plug-ins.
fn plugins() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/plugin/samples")
}

#[test]
fn a_bundle_contains_the_plug_ins_of_its_machines() {
    let vary = "[sweep]\n\"machine.caches.l3.prefetcher.module\" = [\"../machines/stride.wasm\", \"../machines/next_line.wasm\"]";
    let study = Study::new(&QUEENS.replace("[sweep]", vary).replace("[\"4\", \"5\"]", "[\"5\"]"));
    for name in ["stride.wasm", "next_line.wasm"] {
        fs::copy(plugins().join(name), study.path("machines").join(name)).unwrap();
    }
    let machine = fs::read_to_string(study.path("machines/mine.toml")).unwrap();
    let prefetcher =
        "[caches.l3.prefetcher]\nkind = \"plugin\"\nmodule = \"next_line.wasm\"\nsource = \"prefetch\"\n";
    fs::write(study.path("machines/mine.toml"), machine + prefetcher).unwrap();
    assert!(study.success("run", &[]).contains("2 points run"));
    let bundle = study.bundle("bundle.tar");
    for name in ["experiments", "machines", "programs", "store"] {
        fs::remove_dir_all(study.path(name)).unwrap();
    }
    let (status, stdout, errors) = verify(&bundle, &[]);
    assert_eq!(status, 0, "{stdout}{errors}");
    assert!(stdout.contains("2 of 2 points run again, 2 with the same results"), "{stdout}");
}

#[test]
fn a_result_that_differs_is_named_with_both_values() {
    let study = Study::new(QUEENS);
    study.success("run", &[]);
    let segments = study.path("store/segments");
    for segment in fs::read_dir(&segments).unwrap() {
        let path = segment.unwrap().path();
        let lines = fs::read_to_string(&path).unwrap();
        let changed = lines.lines().map(|line| {
            let mut record: Value = serde_json::from_str(&line[9..]).unwrap();
            if record["parameters"]["argument"] == "5" {
                record["metrics"]["instructions"] = 7.0.into();
            }
            let json = record.to_string();
            format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
        });
        let changed: String = changed.collect();
        fs::write(&path, changed).unwrap();
    }
    let (status, stdout, errors) = verify(&study.bundle("x.tar"), &[]);
    assert_eq!(status, 1, "{stdout}{errors}");
    assert!(stdout.contains("2 of 2 points run again, 1 with the same results"), "{stdout}");
    assert!(
        stdout.contains("differs: argument 5 (") && stdout.contains("instructions 7, again "),
        "{stdout}"
    );
}

#[test]
fn results_of_a_bundle_that_contradict_each_other_are_a_failure() {
    let study = Study::new(QUEENS);
    study.success("run", &[]);
    let bundle = study.bundle("x");
    let name = "results/segments/bundle.records";
    let lines = fs::read_to_string(bundle.join(name)).unwrap();
    let mut record: Value = serde_json::from_str(&lines.lines().next().unwrap()[9..]).unwrap();
    record["metrics"]["instructions"] = 7.0.into();
    let json = record.to_string();
    let more = format!("{lines}{:08x} {json}\n", crc32fast::hash(json.as_bytes()));
    fs::write(bundle.join(name), &more).unwrap();
    change_manifest(&bundle, |manifest| list(manifest, name, more.as_bytes()));
    let (status, stdout, errors) = verify(&bundle, &[]);
    assert_eq!(status, 1, "{stdout}{errors}");
    assert!(errors.contains("gave different results"), "{errors}");
}

#[test]
fn an_experiment_in_the_current_folder_is_bundled_by_its_bare_name() {
    let study = Study::new(QUEENS);
    study.success("run", &[]);
    let output = EXPERIMENT
        .command(&["bundle", "queens.toml", "--store", "../store", "--out", "../bare.tar"])
        .current_dir(study.path("experiments"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn incomplete_and_unportable_experiments_are_not_bundled() {
    let study = Study::new(QUEENS);
    let out = study.path("x.tar");
    let bundle = || study.output("bundle", &["--out", out.to_str().unwrap()]);
    let output = bundle();
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("2 of 2 points of queens have no result") && errors.contains("run"), "{errors}");
    let absolute = QUEENS.replace("\"../programs\"", &format!("{:?}", study.path("programs")));
    fs::write(study.path("experiments/queens.toml"), absolute).unwrap();
    study.success("run", &[]);
    let output = bundle();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("absolute path"), "{}", text(&output.stderr));
    assert!(!out.exists());
}

#[test]
fn damaged_and_foreign_bundles_are_refused() {
    let study = Study::new(QUEENS);
    study.success("run", &[]);
    let folder = study.bundle("bundle");
    fs::write(folder.join("files/programs/queens"), "changed").unwrap();
    let (status, _, errors) = verify(&folder, &[]);
    assert_eq!(status, 2);
    assert!(errors.contains("`files/programs/queens` has changed"), "{errors}");
    fs::write(study.path("text"), "not a bundle").unwrap();
    let (status, _, errors) = verify(&study.path("text"), &[]);
    assert!(status == 2 && errors.contains("not a valid bundle"), "{errors}");
    let (status, _, errors) = verify(&study.path("absent"), &[]);
    assert!(status == 2 && errors.contains("absent"), "{errors}");
}

#[test]
fn a_bundle_that_reads_files_of_the_host_is_not_run() {
    let study = Study::new(QUEENS);
    study.success("run", &[]);
    let folder = study.bundle("bundle");
    // The author of a hostile bundle adapts its digests.
    let file = folder.join("files/experiments/queens.toml");
    let outside = format!("{}{}", "../".repeat(20), study.path("programs").display());
    let hostile = fs::read_to_string(&file).unwrap().replace("../programs", &outside);
    fs::write(&file, &hostile).unwrap();
    change_manifest(&folder, |manifest| list(manifest, "files/experiments/queens.toml", hostile.as_bytes()));
    let (status, stdout, errors) = verify(&folder, &[]);
    assert_eq!(status, 2, "{stdout}{errors}");
    assert!(errors.contains("not in the bundle"), "{errors}");
}

#[test]
fn a_report_that_the_results_do_not_give_is_named() {
    let study = Study::new(QUEENS);
    study.success("run", &[]);
    let bundle = study.bundle("bundle");
    fs::write(bundle.join("report.html"), "better").unwrap();
    fs::write(bundle.join("figures/more.svg"), "more").unwrap();
    fs::remove_file(bundle.join("figures/queens.csv")).unwrap();
    change_manifest(&bundle, |manifest| {
        list(manifest, "report.html", b"better");
        list(manifest, "figures/more.svg", b"more");
        manifest["files"].as_object_mut().unwrap().remove("figures/queens.csv");
    });
    let (status, stdout, errors) = verify(&bundle, &[]);
    assert_eq!(status, 1, "{stdout}{errors}");
    for name in ["report.html", "figures/more.svg", "figures/queens.csv"] {
        assert!(stdout.contains(&format!("\n  differs: {name}\n")), "{name}: {stdout}");
    }
    change_manifest(&bundle, |manifest| manifest["longma"] = "longma 0".into());
    let (status, stdout, errors) = verify(&bundle, &[]);
    assert_eq!(status, 0, "{stdout}{errors}");
    assert!(stdout.contains("The report and its figures are not compared"), "{stdout}");
}

#[test]
fn a_bundle_cannot_add_lines_to_the_output() {
    let study = Study::new(QUEENS);
    study.success("run", &[]);
    let bundle = study.bundle("bundle");
    change_manifest(&bundle, |manifest| manifest["longma"] = "x\nforged: 9 of 9\u{1b}[2K".into());
    let (_, stdout, errors) = verify(&bundle, &[]);
    assert!(!stdout.contains("\nforged") && !stdout.contains('\u{1b}'), "{stdout}{errors}");
    change_manifest(&bundle, |manifest| manifest["experiments"][0]["name"] = "q\nforged: 9 of 9".into());
    let (status, stdout, errors) = verify(&bundle, &[]);
    assert_eq!(status, 2, "{stdout}{errors}");
    assert!(!stdout.contains("forged") && !errors.contains("\nforged"), "{stdout}{errors}");
}

#[test]
fn data_after_the_end_of_an_archive_is_refused() {
    let study = Study::new(QUEENS);
    study.success("run", &[]);
    for name in ["x.tar", "x.tar.zst"] {
        let path = study.bundle(name);
        let bytes = [fs::read(&path).unwrap(), b"junk".to_vec()].concat();
        fs::write(&path, bytes).unwrap();
        let (status, _, errors) = verify(&path, &[]);
        assert!(status == 2 && errors.contains("data after the end"), "{status}: {errors}");
    }
}

#[test]
fn an_archive_may_be_the_first_file_of_its_folder() {
    let study = Study::new(QUEENS);
    study.success("run", &[]);
    let path = study.path("absent/x.tar");
    study.success("bundle", &["--out", path.to_str().unwrap()]);
    assert_eq!(verify(&path, &[]).0, 0);
}

#[test]
fn an_output_that_can_never_be_written_is_wrong_input() {
    let study = Study::new(QUEENS);
    study.success("run", &[]);
    fs::write(study.path("file"), "").unwrap();
    let under = |name: &str| study.path(name).to_str().unwrap().to_string();
    // The tests may run as root, to whom no permission is refused.
    for (verb, option, path) in [
        ("bundle", "--out", under("file/x.tar")),
        ("bundle", "--out", under("file")),
        ("bundle", "--out", under(&format!("{}.tar", "x".repeat(300)))),
        ("bundle", "--out", "/proc/longma/x.tar".into()),
        ("report", "--output", under("absent/x.html")),
        ("report", "--output", under("experiments")),
        ("report", "--figures", under("file/figures")),
    ] {
        let report = study.path("report.html");
        let mut arguments = vec![option, &*path];
        if option == "--figures" {
            arguments.extend(["--output", report.to_str().unwrap()]);
        }
        let output = study.output(verb, &arguments);
        assert_eq!(output.status.code(), Some(2), "{verb} {path}: {}", text(&output.stderr));
    }
    for verb in ["run", "compare", "points"] {
        let mut command = EXPERIMENT.command(&[verb]);
        let output =
            command.arg(study.path("experiments/queens.toml")).arg("--store").arg(study.path("file/store"));
        let output = output.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{verb}: {}", text(&output.stderr));
    }
    if Path::new("/dev/full").exists() {
        let output = study.output("report", &["--output", "/dev/full"]);
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    }
}
