//! Source lines of guest addresses, from the DWARF information of the files that the process has mapped.
//! Source: DWARF 5, section 6.2 (line numbers); gimli and addr2line parse it.

use std::{collections::HashMap, ops::Range, path::Path, rc::Rc, sync::Arc};

use addr2line::Context;
use longma_demangle::demangle;
use longma_linux::Process;
use object::{Object, ObjectSection};

use crate::symbols::{Symbols, read_whole};

/// Files with more bytes of DWARF contribute no lines.
const MAX_DWARF_BYTES: u64 = 256 << 20;

type Reader = gimli::EndianArcSlice<gimli::LittleEndian>;
type Lines = Option<Rc<Context<Reader>>>;

/// A line of a program's source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceLine {
    /// The file's path as the compiler recorded it.
    pub file: Arc<str>,
    /// The line, counted from 1.
    pub line: u32,
}

/// A function that an instruction belongs to: one of several if calls were inlined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFrame {
    /// The function's name, demangled, if the DWARF information has it.
    pub function: Option<String>,
    /// The line: of the instruction in the innermost function, of the call in the others.
    pub line: Option<SourceLine>,
}

/// The source lines of a process.
#[derive(Default)]
pub struct SourceLines {
    /// Sorted and without overlap: guest addresses, their difference from the addresses in the file, the file's lines.
    mapped: Vec<(Range<u64>, u64, Lines)>,
    /// Paths that occurred.
    files: HashMap<String, Arc<str>>,
}

impl SourceLines {
    /// The lines of all executable mappings of `process`, which `symbols` describes. A file without DWARF information,
    /// with more than 256 MiB of it uncompressed, or with damaged information, has no source lines.
    pub(crate) fn of(process: &Process, symbols: &Symbols) -> Self {
        let mut read: HashMap<&str, Lines> = HashMap::new();
        let mapped = symbols.files().map(|(range, bias, path)| {
            let lines = read.entry(path).or_insert_with(|| {
                let file = process.open_guest_path(Path::new(path)).ok()?;
                parse(&read_whole(file)?)
            });
            (range, bias, lines.clone())
        });
        Self { mapped: mapped.collect(), files: HashMap::new() }
    }

    /// Whether any file has lines.
    pub fn any(&self) -> bool {
        self.mapped.iter().any(|(_, _, lines)| lines.is_some())
    }

    /// The file's lines that contain a guest address, and the address in that file.
    fn lines_at(&self, address: u64) -> Option<(Rc<Context<Reader>>, u64)> {
        let next = self.mapped.partition_point(|(range, _, _)| range.end <= address);
        let (_, bias, lines) = self.mapped.get(next).filter(|(range, _, _)| range.contains(&address))?;
        Some((lines.clone()?, address.wrapping_sub(*bias)))
    }

    /// The line that the instruction at a guest address was compiled from.
    pub fn find(&mut self, address: u64) -> Option<SourceLine> {
        let (lines, address) = self.lines_at(address)?;
        self.line(lines.find_location(address).ok()??)
    }

    /// The functions that contain the instruction at a guest address: those inlined, the innermost first, and the one
    /// that contains them. Empty without DWARF information.
    pub fn frames(&mut self, address: u64) -> Vec<SourceFrame> {
        let Some((lines, address)) = self.lines_at(address) else { return Vec::new() };
        let Ok(mut found) = lines.find_frames(address).skip_all_loads() else { return Vec::new() };
        let mut frames = Vec::new();
        while let Ok(Some(frame)) = found.next() {
            let function = frame.function.and_then(|name| Some(demangle(&name.raw_name().ok()?)));
            let line = frame.location.and_then(|location| self.line(location));
            frames.push(SourceFrame { function, line });
        }
        frames
    }

    fn line(&mut self, found: addr2line::Location) -> Option<SourceLine> {
        let (path, line) = (found.file?, found.line.filter(|line| *line > 0)?);
        let file = match self.files.get(path) {
            Some(file) => file.clone(),
            None => self.files.entry(path.into()).or_insert_with(|| path.into()).clone(),
        };
        Some(SourceLine { file, line })
    }
}

/// The lines of an ELF file; `None` if it has none.
fn parse(bytes: &[u8]) -> Lines {
    let file = object::File::parse(bytes).ok()?;
    let is_debug = |name: &str| name.starts_with(".debug_") || name.starts_with(".zdebug_");
    let debug = file.sections().filter(|section| section.name().is_ok_and(is_debug));
    let size = |section: object::Section| Some(section.compressed_data().ok()?.uncompressed_size);
    let total = debug.filter_map(size).fold(0, u64::saturating_add);
    if total == 0 || total > MAX_DWARF_BYTES {
        return None;
    }
    let load = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let section = file.section_by_name(id.name());
        let bytes = section.and_then(|section| section.uncompressed_data().ok()).unwrap_or_default();
        Ok(Reader::new(Arc::from(&*bytes), gimli::LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(load).ok()?;
    Context::from_dwarf(dwarf).ok().map(Rc::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::ObjectSymbol;
    use proptest::prelude::*;
    use std::process::Command;

    #[test]
    fn the_lines_of_a_program_with_dwarf_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("lines.c"), folder.path().join("lines"));
        std::fs::write(&source, "\n\nint main(void)\n{\n    return 0;\n}\n").unwrap();
        let compiled = Command::new("cc").arg("-g").arg("-o").arg(&program).arg(&source).status().unwrap();
        assert!(compiled.success());
        let bytes = std::fs::read(&program).unwrap();
        let lines = parse(&bytes).expect("the program was compiled with -g");
        let file = object::File::parse(&*bytes).unwrap();
        let main = file.symbols().find(|symbol| symbol.name() == Ok("main")).unwrap();
        let location = lines.find_location(main.address()).unwrap().unwrap();
        assert!(location.file.unwrap().ends_with("lines.c"));
        assert!(matches!(location.line, Some(3 | 4)), "{:?}", location.line);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn a_file_without_dwarf_and_a_damaged_file_have_no_lines(
            changes in prop::collection::vec((0usize..20000, any::<u8>()), 0..40),
        ) {
            let guest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/prebuilt/loongarch64/hello");
            let mut bytes = std::fs::read(guest).unwrap();
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            let _ = parse(&bytes).map(|lines| lines.find_location(0x1_0000).is_ok());
        }
    }
}
