//! WebAssembly modules of plug-ins. A machine file names the module's file; a machine that is written out contains the
//! module as a `data:` URL. Results with such a machine therefore depend on the contents of the module, and the machine
//! needs no other file.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::read::{Node, Problems, Value, as_str};

/// The maximum size of a module.
const MAX_BYTES: u64 = 512 << 10;

/// How a machine that is written out contains a module.
const URL: &str = "data:application/wasm;base64,";

/// The first bytes of a binary WebAssembly module.
const MAGIC: &[u8] = b"\0asm";

/// A WebAssembly module.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Module(Arc<[u8]>);

impl Module {
    /// The binary module.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({})", summary(&self.0))
    }
}

impl Serialize for Module {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&url(&self.0))
    }
}

impl Value for Module {
    fn kind() -> String {
        "path of a WebAssembly module".into()
    }

    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
        let text = as_str(node, "the path of a WebAssembly module", problems)?;
        match decoded(text) {
            Ok(bytes) => Some(Self(bytes.into())),
            Err(message) => {
                let help = "give the path of a binary module (.wasm), relative to this file".into();
                problems.error(node.span(), message, "this module", help);
                None
            }
        }
    }

    fn placeholder() -> Self {
        Self::default()
    }
}

/// The keys that name a module: its part of the machine, the table in this part (none if empty), and the key.
const KEYS: [(&str, &str, &str); 4] = [
    ("caches", "", "replacement_module"),
    ("caches", "prefetcher", "module"),
    ("cores", "branch", "predictor_module"),
    ("cores", "branch", "indirect_module"),
];

/// Returns whether a key of a machine, such as `caches.l2.prefetcher.module`, names a module.
pub fn names_module(key: &str) -> bool {
    let steps: Vec<&str> = key.split('.').collect();
    KEYS.iter().any(|(parts, table, module)| match steps[..] {
        [first, _, last] => table.is_empty() && (first, last) == (parts, module),
        [first, _, between, last] => (first, between, last) == (parts, table, module),
        _ => false,
    })
}

/// Makes the paths of modules in a machine file relative to the file's folder.
pub(crate) fn resolve_paths(folder: &Path, table: &mut DeTable<'_>) {
    for (parts, inner, key) in KEYS {
        let Some(DeValue::Table(parts)) = entry(table, parts) else { continue };
        for (_, part) in parts.iter_mut() {
            let DeValue::Table(part) = part.get_mut() else { continue };
            let keys = match inner {
                "" => Some(part),
                _ => match entry(part, inner) {
                    Some(DeValue::Table(inner)) => Some(inner),
                    _ => None,
                },
            };
            if let Some(DeValue::String(module)) = keys.and_then(|keys| entry(keys, key))
                && !module.starts_with(URL)
            {
                *module = folder.join(&**module).display().to_string().into();
            }
        }
    }
}

fn entry<'a, 'i>(table: &'a mut DeTable<'i>, wanted: &str) -> Option<&'a mut DeValue<'i>> {
    table.iter_mut().find(|(key, _)| key.get_ref() == wanted).map(|(_, value)| Spanned::get_mut(value))
}

/// A text that identifies the module in `text`, if this is a URL of [`url`].
pub(crate) fn identified(text: &str) -> Option<String> {
    text.starts_with(URL).then(|| decoded(text).map_or_else(|_| text.into(), |bytes| summary(&bytes)))
}

fn summary(bytes: &[u8]) -> String {
    let hash: String = Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{} bytes of WebAssembly, sha256 {hash}...", bytes.len())
}

fn url(bytes: &[u8]) -> String {
    format!("{URL}{}", STANDARD.encode(bytes))
}

fn decoded(text: &str) -> Result<Vec<u8>, String> {
    let bytes = match text.strip_prefix(URL) {
        Some(encoded) => {
            STANDARD.decode(encoded).map_err(|error| format!("the module is not valid base64: {error}"))?
        }
        None => read_file(Path::new(text))?,
    };
    match bytes.starts_with(MAGIC) {
        true => Ok(bytes),
        false => Err("this is not a binary WebAssembly module".into()),
    }
}

/// The bytes of a regular file, up to [`MAX_BYTES`].
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let fault = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    if !std::fs::metadata(path).map_err(fault)?.is_file() {
        return Err(format!("{} is not a file", path.display()));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(fault)?;
    match bytes.len() as u64 {
        0..=MAX_BYTES => Ok(bytes),
        _ => Err(format!("{} is larger than {MAX_BYTES} bytes, the maximum for a module", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::names_module;
    use crate::difference::differences;
    use crate::machine::{Machine, check};
    use crate::problem::Level;

    const HEAD: &str = "extends = \"loongson-3a5000\"\nname = \"own\"\ntitle = \"with a prefetcher\"\n";

    fn text(module: &str) -> String {
        let table = "[caches.l2.prefetcher]\nkind = \"plugin\"\nsource = \"machine\"\n";
        format!(
            "{HEAD}{table}module = \"{module}\"\n[sources.machine]\nkind = \"estimate\"\ntitle = \"a study\"\nreasoning = \"an idea\"\n"
        )
    }

    #[test]
    fn a_module_is_read_beside_its_file_and_written_into_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("first.wasm", b"\0asm first");
        write("second.wasm", b"\0asm other");
        write("first.toml", text("first.wasm").as_bytes());
        write("second.toml", text("./second.wasm").as_bytes());
        std::fs::create_dir(folder.path().join("below")).unwrap();
        write("below/third.toml", b"extends = \"../first.toml\"\nname = \"third\"\n");
        let open = |name: &str| Machine::open(folder.path().join(name).to_str().unwrap()).unwrap();
        let [first, second, third] = ["first.toml", "second.toml", "below/third.toml"].map(open);
        let module =
            |machine: &Machine| machine.caches["l2"].prefetcher.as_ref().unwrap().module.clone().unwrap();
        assert_eq!(module(&first).bytes(), b"\0asm first");
        assert_eq!(module(&third).bytes(), b"\0asm first");
        let written = first.to_toml();
        assert!(written.contains("data:application/wasm;base64,AGFzbSBmaXJzdA=="), "{written}");
        assert_eq!(Machine::parse("elsewhere", &written).unwrap().parts(), first.parts());
        let [difference] = differences(&first, &second).try_into().unwrap();
        assert_eq!(difference.key, "caches.l2.prefetcher.module");
        assert!(difference.first.unwrap().starts_with("10 bytes of WebAssembly, sha256 "));
    }

    #[test]
    fn what_is_not_a_module_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("text.wasm", b"(module)");
        write("large.wasm", &vec![0; (512 << 10) + 1]);
        for (module, expected) in [
            ("no.wasm", "No such file"),
            ("text.wasm", "not a binary WebAssembly module"),
            ("large.wasm", "larger than 524288 bytes"),
            ("/dev/zero", "/dev/zero is not a file"),
            (".", "not a file"),
            ("data:application/wasm;base64,AGFz!", "not valid base64"),
            ("data:application/wasm;base64,AGFz", "not a binary WebAssembly module"),
        ] {
            let file = folder.path().join("machine.toml");
            let report = check(file.to_str().unwrap(), &text(module)).report;
            let located = report.located();
            assert_eq!((located.len(), located[0].line), (1, 7), "{module}: {}", report.render(100, false));
            assert!(located[0].message.contains(expected), "{module}: {}", located[0].message);
        }
    }

    #[test]
    fn every_kind_of_plug_in_is_read_beside_its_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("own.wasm"), b"\0asm own").unwrap();
        let keys = "[caches.l1d]\nreplacement = \"plugin\"\nreplacement_module = \"own.wasm\"\n\
            [cores.la464.branch]\npredictor = \"plugin\"\npredictor_module = \"own.wasm\"\n\
            indirect = \"plugin\"\nindirect_module = \"own.wasm\"\nindirect_history = 12\n";
        let head = "extends = \"loongson-3a5000\"\nname = \"own\"\n";
        let file = folder.path().join("own.toml");
        let checked = check(file.to_str().unwrap(), &format!("{head}{keys}"));
        assert_eq!(checked.report.located().len(), 0, "{}", checked.report.render(100, false));
        let machine = checked.machine.unwrap();
        let branch = machine.cores["la464"].branch.as_ref().unwrap();
        let modules =
            [&machine.caches["l1d"].replacement_module, &branch.predictor_module, &branch.indirect_module];
        assert!(modules.iter().all(|module| module.as_ref().unwrap().bytes() == b"\0asm own"));
        let written = machine.to_toml();
        assert_eq!(written.matches("_module = \"data:application/wasm;base64,AGFzbSBvd24=\"").count(), 3);
        // A study that compares a plug-in with a built-in kind changes only the kind.
        for (key, kind, module) in [
            ("replacement", "lru", "replacement_module"),
            ("predictor", "tage", "predictor_module"),
            ("indirect", "ittage", "indirect_module"),
        ] {
            let other = keys.replacen(&format!("{key} = \"plugin\""), &format!("{key} = \"{kind}\""), 1);
            let checked = check(file.to_str().unwrap(), &format!("{head}{other}"));
            let [problem] = checked.report.located().try_into().unwrap();
            assert_eq!((problem.level, checked.machine.is_some()), (Level::Warning, true));
            let expected = format!("`{module}` has no effect with the {key} \"{kind}\"");
            assert_eq!(problem.message, expected);
            let without = keys.replacen(&format!("{module} = \"own.wasm\""), "", 1);
            let report = check(file.to_str().unwrap(), &format!("{head}{without}")).report;
            assert_eq!((report.errors(), report.located().len()), (1, 1));
            assert_eq!(report.located()[0].message, format!("a plug-in needs its `{module}`"));
        }
    }

    #[test]
    fn keys_that_name_modules_are_known() {
        for (key, expected) in [
            ("caches.l2.replacement_module", true),
            ("caches.l2.prefetcher.module", true),
            ("cores.la464.branch.predictor_module", true),
            ("cores.la464.branch.indirect_module", true),
            ("caches.l2.prefetcher.replacement_module", false),
            ("cores.la464.predictor_module", false),
            ("caches.l2.replacement", false),
            ("module", false),
        ] {
            assert_eq!(names_module(key), expected, "{key}");
        }
    }

    #[test]
    fn the_kind_and_the_module_belong_together() {
        let without =
            text("x").lines().filter(|line| !line.starts_with("module")).collect::<Vec<_>>().join("\n");
        let report = check("own.toml", &without).report;
        assert!(report.located()[0].message.contains("a plug-in needs its `module`"), "{}", report.summary());
        let other = text("data:application/wasm;base64,AGFzbQ==").replace("\"plugin\"", "\"stream\"");
        let report = check("own.toml", &other).report;
        assert!(report.located()[0].message.contains("`module` has no effect"), "{}", report.summary());
    }
}
