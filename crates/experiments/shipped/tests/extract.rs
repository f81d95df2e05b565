//! Tests of extraction: the files written, the repair of damaged files, and the folders rejected.

use longma_shipped::{CacheFolders, ENTRIES, Entry, contents, entry, experiments, extract};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};
use tempfile::tempdir;

const HELLO: &str = "guests/prebuilt/loongarch64/hello";

fn hello() -> [&'static Entry; 1] {
    [entry(HELLO).unwrap()]
}

/// CacheFolders with a cache folder only.
fn cache(folder: &Path) -> CacheFolders {
    CacheFolders::new(Some(folder.into()), None, Vec::new())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_files_are_those_of_the_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folder = tempdir().unwrap();
    let extracted = extract(ENTRIES, &cache(folder.path())).unwrap();
    for entry in ENTRIES {
        let file = extracted.join(entry.path);
        assert_eq!(fs::read(&file).unwrap(), fs::read(root.join(entry.path)).unwrap(), "{}", entry.path);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o077, 0, "{}", entry.path);
    }
    let files = fs::read_dir(root.join("experiments")).unwrap().map(|file| file.unwrap().path());
    let count = files.filter(|file| file.extension().is_some_and(|ending| ending == "toml")).count();
    assert_eq!(experiments().count(), count);
}

#[test]
fn only_the_user_can_access_the_folders() {
    let folder = tempdir().unwrap();
    let base = folder.path().join("cache");
    let extracted = extract(hello(), &cache(&base)).unwrap();
    let program = extracted.join(HELLO);
    for above in program.ancestors().skip(1).take_while(|above| *above != folder.path()) {
        assert_eq!(fs::metadata(above).unwrap().mode() & 0o777, 0o700, "{}", above.display());
    }
    assert_eq!(fs::metadata(&program).unwrap().mode() & 0o777, 0o700);
    let left: Vec<_> = fs::read_dir(program.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "no partial file stays");
}

#[test]
fn a_second_use_writes_nothing_and_a_changed_file_is_replaced() {
    let folder = tempdir().unwrap();
    let folders = cache(folder.path());
    let program = extract(hello(), &folders).unwrap().join(HELLO);
    let first = fs::metadata(&program).unwrap().ino();
    extract(hello(), &folders).unwrap();
    assert_eq!(fs::metadata(&program).unwrap().ino(), first);

    let right = contents(hello()[0]);
    let mut wrong = right.to_vec();
    wrong[1000] ^= 1;
    for content in [&wrong[..], b"", &right[..right.len() - 1]] {
        fs::write(&program, content).unwrap();
        extract(hello(), &folders).unwrap();
        assert_eq!(fs::read(&program).unwrap(), right);
    }
    set_mode(&program, 0o722);
    extract(hello(), &folders).unwrap();
    assert_eq!(fs::metadata(&program).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_symbolic_link_instead_of_a_file_is_replaced_and_its_target_is_unchanged() {
    let folder = tempdir().unwrap();
    let folders = cache(folder.path());
    let program = extract(hello(), &folders).unwrap().join(HELLO);
    let target = folder.path().join("target");
    fs::write(&target, contents(hello()[0])).unwrap();
    set_mode(&target, 0o700);
    fs::remove_file(&program).unwrap();
    symlink(&target, &program).unwrap();
    extract(hello(), &folders).unwrap();
    assert!(fs::symlink_metadata(&program).unwrap().is_file());
    fs::write(&target, "other").unwrap();
    assert_eq!(fs::read(&program).unwrap(), contents(hello()[0]));
}

#[test]
fn a_symbolic_link_in_the_place_of_a_folder_is_refused() {
    for linked in ["longma", "longma/shipped"] {
        let (folder, elsewhere) = (tempdir().unwrap(), tempdir().unwrap());
        let place = folder.path().join(linked);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        set_mode(place.parent().unwrap(), 0o700);
        symlink(elsewhere.path(), &place).unwrap();
        let error = extract(hello(), &cache(folder.path())).unwrap_err().to_string();
        assert!(error.contains("is not a folder") && error.contains("XDG_CACHE_HOME"), "{error}");
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_folder_that_other_users_can_write_to_is_refused() {
    let folder = tempdir().unwrap();
    fs::create_dir(folder.path().join("longma")).unwrap();
    set_mode(&folder.path().join("longma"), 0o777);
    let error = extract(hello(), &cache(folder.path())).unwrap_err().to_string();
    assert!(error.contains("other users can write"), "{error}");
}

#[test]
fn without_a_usable_home_the_files_go_to_the_users_temporary_folder() {
    let folder = tempdir().unwrap();
    let user = rustix::process::geteuid().as_raw();
    for home in [
        None,
        Some("/nonexistent".into()),
        Some("".into()),
        Some("relative".into()),
        Some("/dev/null".into()),
    ] {
        let folders = CacheFolders::new(None, home, vec![folder.path().into()]);
        let extracted = extract(hello(), &folders).unwrap();
        assert!(extracted.starts_with(folder.path().join(format!("longma-{user}"))), "{extracted:?}");
    }
    assert!(!Path::new("/nonexistent").exists());
    let mine = folder.path().join(format!("longma-{user}"));
    set_mode(&mine, 0o755);
    let error = extract(hello(), &CacheFolders::new(None, None, vec![folder.path().into()])).unwrap_err();
    assert!(error.to_string().contains("other users can read"), "{error}");
}

#[test]
fn a_home_folder_is_used_if_there_is_no_cache_folder() {
    let home = tempdir().unwrap();
    let extracted = extract(hello(), &CacheFolders::new(None, Some(home.path().into()), Vec::new())).unwrap();
    assert!(extracted.starts_with(home.path().join(".cache/longma/shipped")), "{extracted:?}");
}

#[test]
fn files_of_versions_that_were_not_used_for_a_month_are_removed() {
    let folder = tempdir().unwrap();
    let all = folder.path().join("longma/shipped");
    for (name, days) in [("0123456789abcdef", 40), ("fedcba9876543210", 20), ("something else", 40)] {
        fs::create_dir_all(all.join(name)).unwrap();
        let used = SystemTime::now() - Duration::from_secs(days * 24 * 3600);
        fs::File::open(all.join(name)).unwrap().set_modified(used).unwrap();
    }
    for private in [folder.path().join("longma"), all.clone()] {
        set_mode(&private, 0o700);
    }
    extract(hello(), &cache(folder.path())).unwrap();
    assert!(!all.join("0123456789abcdef").exists());
    assert!(all.join("fedcba9876543210").exists() && all.join("something else").exists());
}

#[test]
fn several_processes_can_extract_at_the_same_time() {
    let folder = tempdir().unwrap();
    let folders = cache(folder.path());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| extract(ENTRIES, &folders).unwrap());
        }
    });
    let extracted = extract(ENTRIES, &folders).unwrap();
    assert!(ENTRIES.iter().all(|entry| fs::read(extracted.join(entry.path)).unwrap() == contents(entry)));
}
