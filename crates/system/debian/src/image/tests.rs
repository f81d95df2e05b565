//! Tests that make images from small packages in an archive on this host.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use lzma_rust2::{XzOptions, XzWriter};
use proptest::prelude::*;

use super::*;
use crate::download::Archive;

/// Records the steps that are reported.
#[derive(Default)]
struct Notes(Vec<String>);

impl Observer for Notes {
    fn begin(&mut self, step: &str, _: u64) {
        self.0.push(step.to_owned());
    }
    fn reach(&mut self, _: u64) {}
    fn note(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
}

/// A web server of files. The log has each request's path and first byte.
struct Server {
    address: String,
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    log: Arc<Mutex<Vec<(String, usize)>>>,
}

impl Server {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = format!("http://{}/debian", listener.local_addr().expect("it has one"));
        let (files, log) = (Arc::default(), Arc::default());
        let server = Self { address, files, log };
        let (files, log) = (Arc::clone(&server.files), Arc::clone(&server.log));
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let _ = answer(connection, &files, &log);
            }
        });
        server
    }

    fn put(&self, path: &str, content: Vec<u8>) -> Pin {
        let pin = Pin { path: path.to_owned(), sha256: sha256(&content) };
        self.files.lock().expect("no thread panics").insert(format!("/debian/{path}"), content);
        pin
    }

    fn source(&self) -> Source {
        Source::Archive(Archive::at(&self.address))
    }

    fn requests(&self) -> Vec<(String, usize)> {
        std::mem::take(&mut *self.log.lock().expect("no thread panics"))
    }
}

fn answer(
    mut connection: TcpStream,
    files: &Mutex<BTreeMap<String, Vec<u8>>>,
    log: &Mutex<Vec<(String, usize)>>,
) -> io::Result<()> {
    let mut lines = BufReader::new(connection.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut from = None;
    for line in lines {
        let line = line?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(range) = line.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().ok();
        }
    }
    log.lock().expect("no thread panics").push((path.clone(), from.unwrap_or(0)));
    let files = files.lock().expect("no thread panics");
    let (status, content) = match (files.get(&path), from) {
        (None, _) => ("404 Not Found", &[][..]),
        (Some(content), None) => ("200 OK", &content[..]),
        (Some(content), Some(from)) if from < content.len() => ("206 Partial Content", &content[from..]),
        (Some(_), Some(_)) => ("416 Range Not Satisfiable", &[][..]),
    };
    let header =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len());
    connection.write_all(header.as_bytes())?;
    connection.write_all(content)
}

fn xz(content: &[u8]) -> Vec<u8> {
    let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(0)).expect("the preset exists");
    writer.write_all(content).expect("there is memory");
    writer.finish().expect("there is memory")
}

/// A package with these files.
fn package(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, format!("./{path}"), *content).expect("there is memory");
    }
    let files = xz(&archive.into_inner().expect("there is memory"));
    let mut package = b"!<arch>\n".to_vec();
    for (name, content) in
        [("debian-binary", &b"2.0\n"[..]), ("control.tar.xz", b"odd"), ("data.tar.xz", &files)]
    {
        package.extend(
            format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 100_644, content.len()).bytes(),
        );
        package.extend(content);
        package.extend(std::iter::repeat_n(b'\n', content.len() % 2));
    }
    package
}

/// A module that needs others.
fn module(needs: &str) -> Vec<u8> {
    xz(format!("\x7fELF\0license=GPL\0depends={needs}\0name=x\0").as_bytes())
}

/// Puts the packages of a release into an archive.
fn release(server: &Server, release: &str) -> Packages {
    let name =
        |kind: &str| format!("pool/main/l/linux/linux-{kind}-{release}-loong64_{release}-1_loong64.deb");
    let folder = format!("usr/lib/modules/{release}");
    let vmlinuz = format!("{folder}/vmlinuz");
    let modules =
        [("net/9p/9pnet.ko.xz", ""), ("fs/9p/9p.ko.xz", "9pnet,netfs"), ("fs/netfs/netfs.ko.xz", "")];
    let more =
        [("net/9p/9pnet_virtio.ko.xz", "9pnet"), ("drivers/virtio-rng.ko.xz", ""), ("x/other.ko.xz", "")];
    let modules: Vec<(String, Vec<u8>)> = modules
        .into_iter()
        .chain(more)
        .map(|(path, needs)| (format!("{folder}/{path}"), module(needs)))
        .collect();
    let modules: Vec<(&str, &[u8])> =
        modules.iter().map(|(path, content)| (path.as_str(), &content[..])).collect();
    Packages {
        kernel: server.put(&name("binary"), package(&[(&vmlinuz, release.as_bytes())])),
        modules: server.put(&name("modules"), package(&modules)),
        busybox: server.put(
            "pool/main/b/busybox/busybox-static_1-1_loong64.deb",
            package(&[("usr/bin/busybox", b"busybox")]),
        ),
    }
}

fn cache() -> tempfile::TempDir {
    tempfile::tempdir().expect("the host has a temporary folder")
}

#[test]
fn an_image_is_made_once_and_then_needs_no_archive() {
    let (server, cache) = (Server::new(), cache());
    let packages = release(&server, "7.1");
    let mut notes = Notes::default();
    let offline = image_of(&packages, cache.path(), &Source::Cache, &mut notes);
    assert!(
        offline.is_err_and(|error| error
            .to_string()
            .contains("run `longma boot debian` once without --offline"))
    );
    let made = image_of(&packages, cache.path(), &server.source(), &mut notes).expect("the archive has all");
    assert_eq!(server.requests().len(), 3);
    assert_eq!(image_of(&packages, cache.path(), &Source::Cache, &mut notes).expect("it is there"), made);
    assert_eq!(image_of(&packages, cache.path(), &server.source(), &mut notes).expect("it is there"), made);
    assert!(server.requests().is_empty());
    assert_eq!(std::fs::read(&made.kernel).expect("it exists"), b"7.1");
    let disk = std::fs::read(&made.initrd).expect("it exists");
    let has = |text: &str| disk.windows(text.len()).any(|part| part == text.as_bytes());
    // Dependencies are loaded first.
    assert!(has("virtio_rng\n9pnet\n9pnet_virtio\nnetfs\n9p\n"), "the order");
    assert!(has("bin/busybox\0") && has("lib/modules/9p.ko\0") && has("TRAILER!!!\0") && !has("other.ko"));
    let left: Vec<_> =
        std::fs::read_dir(cache.path()).expect("it exists").flatten().map(|it| it.file_name()).collect();
    assert_eq!(left.len(), 2, "the image and the lock: {left:?}");
}

#[test]
fn fetched_packages_are_enough_without_a_network() {
    let (server, cache) = (Server::new(), cache());
    let packages = release(&server, "7.1");
    let folder = cache.path().join(DOWNLOADS);
    std::fs::create_dir_all(&folder).expect("the folder is writable");
    let offline = || image_of(&packages, cache.path(), &Source::Cache, &mut Notes::default());
    for pin in packages.each() {
        assert!(matches!(offline(), Err(ImageError::Offline(_))), "{} is missing", pin.path);
        let content =
            server.files.lock().expect("no thread panics")[&format!("/debian/{}", pin.path)].clone();
        std::fs::write(folder.join(file_name(pin)), content).expect("the folder is writable");
    }
    let image = offline().expect("all packages are there");
    assert_eq!(std::fs::read(&image.kernel).expect("it exists"), b"7.1");
    assert!(server.requests().is_empty());
}

#[test]
fn a_damaged_image_is_made_again() {
    let (server, cache) = (Server::new(), cache());
    let packages = release(&server, "7.1");
    let mut notes = Notes::default();
    let made = image_of(&packages, cache.path(), &server.source(), &mut notes).expect("the archive has all");
    for file in [&made.kernel, &made.initrd] {
        let content = std::fs::read(file).expect("it exists");
        std::fs::write(file, &content[1..]).expect("the folder is writable");
        let offline = image_of(&packages, cache.path(), &Source::Cache, &mut notes);
        assert!(
            offline.is_err_and(|error| error.to_string().contains("is damaged; run `longma boot debian`"))
        );
        server.requests();
        image_of(&packages, cache.path(), &server.source(), &mut notes).expect("the archive has all");
        assert_eq!(server.requests().len(), 3);
        assert_eq!(std::fs::read(file).expect("it exists"), content);
        assert!(notes.0.iter().any(|note| note.ends_with("is damaged: making it again")), "{:?}", notes.0);
    }
}

#[test]
fn an_interrupted_download_goes_on_where_it_ended() {
    let (server, cache) = (Server::new(), cache());
    let packages = release(&server, "7.1");
    let content =
        server.files.lock().expect("no thread panics")[&format!("/debian/{}", packages.modules.path)].clone();
    let part = cache.path().join("packages").join(file_name(&packages.modules)).with_extension("part");
    std::fs::create_dir_all(part.parent().expect("it has one")).expect("the folder is writable");
    // A part of the file, the whole file, and a part of another file.
    for (there, requests) in [(&content[..100], 1), (&content[..], 1), (b"another file".as_slice(), 2)] {
        std::fs::write(&part, there).expect("the folder is writable");
        let archive = Archive::at(&server.address);
        let place = part.with_extension("deb");
        let pin = &packages.modules;
        let fetched = archive.fetch(&pin.path, &pin.sha256, &place, &mut Notes::default());
        let log = server.requests();
        assert_eq!((log.len(), log[0].1), (requests, there.len()));
        assert!(fetched.is_ok(), "{fetched:?}");
        assert_eq!(std::fs::read(&place).expect("it is there"), content);
        std::fs::remove_file(&place).expect("it is there");
    }
}

#[test]
fn a_file_with_another_hash_is_not_used() {
    let (server, cache) = (Server::new(), cache());
    let packages = release(&server, "7.1");
    server.put(&packages.kernel.path, b"another".to_vec());
    let made = image_of(&packages, cache.path(), &server.source(), &mut Notes::default());
    assert!(matches!(made, Err(ImageError::Hash(_))), "{made:?}");
    assert!(made.is_err_and(|error| {
        error
            .to_string()
            .starts_with("linux-binary-7.1-loong64_7.1-1_loong64.deb does not have the expected hash")
    }));
}

#[test]
fn the_newest_kernel_replaces_one_that_is_gone() {
    let (server, cache) = (Server::new(), cache());
    let gone = release(&server, "7.1");
    server.files.lock().expect("no thread panics").clear();
    let packages = release(&server, "7.2");
    let paragraph = |name: &str, pin: &Pin| {
        format!("Package: {name}\nVersion: 7.2-1\nFilename: {}\nSHA256: {}\n\n", pin.path, pin.sha256)
    };
    let list = [
        paragraph("linux-binary-7.2-loong64", &packages.kernel),
        paragraph("linux-modules-7.2-loong64", &packages.modules),
        paragraph("busybox-static", &packages.busybox),
    ];
    let list = xz(list.concat().as_bytes());
    let text = format!("Origin: Debian\nSHA256:\n {} {} {LIST}\n", sha256(&list), list.len());
    server.put(&format!("{DISTRIBUTION}/{LIST}"), list);
    let mut notes = Notes::default();
    // The test has no key of Debian, so it skips the signature check and starts from the signed text.
    let hash = hash_of_list(&text).expect("it is in the text");
    let found = list_with(&Archive::at(&server.address), &hash).expect("the hash is right");
    assert_eq!(Packages::newest(&found), Some(packages));
    assert!(matches!(list_with(&Archive::at(&server.address), &"0".repeat(64)), Err(ImageError::Hash(_))));
    let made = image_of(&gone, cache.path(), &server.source(), &mut notes);
    // There is no InRelease.
    assert!(made.is_err_and(|error| error.to_string().contains("the archive has no InRelease")));
    assert!(notes.0.iter().any(|note| note.contains("is no longer in Debian's archive")), "{:?}", notes.0);
}

#[test]
fn a_signature_of_another_is_refused() {
    if !KEYS.iter().any(|keys| Path::new(keys).exists())
        || Command::new("gpgv").arg("--version").output().is_err()
    {
        return;
    }
    let text = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: Debian\n-----BEGIN PGP SIGNATURE-----\n\niQ==\n-----END PGP SIGNATURE-----\n";
    assert!(matches!(signed_text(text.as_bytes(), &mut Notes::default()), Err(ImageError::Signature(_))));
}

#[test]
fn a_package_that_is_malformed_is_refused() {
    let whole = package(&[("a", b"content")]);
    assert_eq!(files(&whole, &mut |_| true).expect("it is whole"), [("a".to_owned(), b"content".to_vec())]);
    for bytes in [&b""[..], b"!<arch>\n", b"!<arch>\nshort", &whole[..100], &whole[..whole.len() - 30]] {
        assert!(files(bytes, &mut |_| true).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_damaged_package_has_no_wrong_effect(at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut bytes = package(&[("a", b"content"), ("b", &[7; 5000])]);
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = files(&bytes, &mut |_| true);
    }

    #[test]
    fn needs_are_read_from_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        needs(&bytes);
        needs(&[b"\0depends=", &bytes[..]].concat());
    }
}
