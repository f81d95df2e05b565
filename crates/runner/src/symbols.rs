//! Maps guest addresses to functions, using the symbol tables of the files that the process has mapped. Source: System
//! V ABI, chapter 4 (symbol table); for Go's function table, symtab.go of the Go runtime and pcln.go of the linker.

use std::{cell::OnceCell, collections::HashMap, fs::File, io::Read, ops::Range, path::Path, rc::Rc};

use longma_demangle::demangle;
use longma_guest::Mapping;
use longma_linux::Process;
use longma_linux::simulated::identity::FIRST_ID;
use object::{Object, ObjectKind, ObjectSection, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind};

/// Larger files are not searched for symbols.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Code without symbols is grouped into ranges of this many bytes.
pub const UNNAMED_RANGE_BYTES: u64 = 1024;

/// The function that contains an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodeLocation {
    /// The function's name, or `[name+0x400]` for a range without symbols.
    pub function: String,
    /// The file's name without its directory, or the mapping's purpose (`[vdso]`, `[anonymous]`).
    pub object: String,
    /// The guest address of the first byte of the function or range.
    pub start: u64,
}

/// The functions of a process.
#[derive(Debug, Default)]
pub struct Symbols {
    /// Sorted and without overlap.
    mapped: Vec<Mapped>,
}

#[derive(Debug)]
struct Mapped {
    range: Range<u64>,
    /// The difference between guest addresses and addresses in the file.
    bias: u64,
    object: Rc<Functions>,
    /// The guest path of the file; `None` for anonymous memory.
    path: Option<String>,
    /// The offset in the file at which the range starts.
    offset: u64,
}

/// An executable mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile<'a> {
    /// The guest addresses.
    pub range: Range<u64>,
    /// The offset in the file at which the range starts.
    pub offset: u64,
    /// The guest path of the file.
    pub path: &'a str,
}

/// The functions of a file, with addresses as in the file.
#[derive(Debug, Default)]
struct Functions {
    name: String,
    /// The lowest address in the file. Ranges without symbols are relative to it.
    start: u64,
    /// Sorted by start.
    functions: Vec<Function>,
    /// The loadable segments, in the order of the file.
    segments: Vec<Segment>,
    /// Whether the file is not relocatable (`ET_EXEC`).
    is_fixed: bool,
}

/// A loadable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    /// The offset in the file.
    offset: u64,
    /// The size in the file.
    bytes: u64,
    /// The address in the file.
    address: u64,
    is_code: bool,
}

impl Segment {
    /// Whether the mapping of the segment, which consists of whole pages, contains file offset `offset`.
    fn is_mapped_with(&self, offset: u64) -> bool {
        let page = longma_guest::PAGE_BYTES;
        (self.offset / page * page..self.offset.saturating_add(self.bytes)).contains(&offset)
    }

    /// The difference between guest addresses and addresses in the file, if file offset `offset` of this segment is
    /// mapped at `start`.
    fn bias(&self, start: u64, offset: u64) -> u64 {
        start.wrapping_sub(self.address.wrapping_sub(self.offset).wrapping_add(offset))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    range: Range<u64>,
    /// The name in the symbol table.
    name: String,
    /// The name in the source, computed when it is first needed, because most functions of a file are not executed.
    demangled: OnceCell<String>,
}

impl Function {
    fn new(range: Range<u64>, name: String) -> Self {
        Self { range, name, demangled: OnceCell::new() }
    }

    fn demangled(&self) -> &str {
        self.demangled.get_or_init(|| demangle(&self.name))
    }
}

impl Symbols {
    /// The functions of all executable mappings of `process`. A file that cannot be read or parsed contributes none.
    pub fn of(process: &Process) -> Self {
        let mut files: HashMap<String, Rc<Functions>> = HashMap::new();
        let mappings = process.address_space().mappings();
        let lies_at = |name: &str, address: u64, offset: u64| {
            mappings.iter().any(|(range, mapping)| {
                mapping.origin.name == name
                    && range.contains(&address)
                    && mapping.offset.wrapping_add(address - range.start) == offset
            })
        };
        let mapped = mappings
            .iter()
            .filter(|(_, mapping)| mapping.protection.execute)
            .map(|(range, mapping)| {
                let object = files
                    .entry(mapping.origin.name.clone())
                    .or_insert_with(|| Rc::new(functions_of(process, mapping)))
                    .clone();
                let holds = |address, offset| lies_at(&mapping.origin.name, address, offset);
                let bias = object.bias(range.start, mapping.offset, holds);
                let path = mapping.origin.is_file.then(|| mapping.origin.name.clone());
                Mapped { range: range.clone(), bias, object, path, offset: mapping.offset }
            })
            .collect();
        Self { mapped }
    }

    /// The executable mappings: the guest addresses, their difference from the addresses in the file, and the guest
    /// path of the file, if there is one.
    pub(crate) fn executable(&self) -> impl Iterator<Item = (Range<u64>, u64, Option<&str>)> {
        self.mapped.iter().map(|mapped| (mapped.range.clone(), mapped.bias, mapped.path.as_deref()))
    }

    /// The executable mappings of files, as [`Symbols::executable`].
    pub(crate) fn files(&self) -> impl Iterator<Item = (Range<u64>, u64, &str)> {
        self.executable().filter_map(|(range, bias, path)| Some((range, bias, path?)))
    }

    /// The executable mappings of files, in the order of their addresses.
    pub fn mapped_files(&self) -> impl Iterator<Item = MappedFile<'_>> {
        self.mapped.iter().filter_map(|mapped| {
            let path = mapped.path.as_deref()?;
            Some(MappedFile { range: mapped.range.clone(), offset: mapped.offset, path })
        })
    }

    /// The function or range that contains `address`.
    pub fn find(&self, address: u64) -> CodeLocation {
        let next = self.mapped.partition_point(|mapped| mapped.range.end <= address);
        let Some(mapped) = self.mapped.get(next).filter(|mapped| mapped.range.contains(&address)) else {
            return CodeLocation {
                function: "[unmapped since]".into(),
                object: "[unmapped]".into(),
                start: address,
            };
        };
        let object = &mapped.object;
        let inside = address.wrapping_sub(mapped.bias);
        if let Some(function) = object.function_at(inside) {
            let start = function.range.start.wrapping_add(mapped.bias);
            let function = function.demangled().to_owned();
            return CodeLocation { function, object: object.name.clone(), start };
        }
        let from_start = inside.wrapping_sub(object.start) / UNNAMED_RANGE_BYTES * UNNAMED_RANGE_BYTES;
        CodeLocation {
            function: format!("[{}+{from_start:#x}]", object.name.trim_matches(['[', ']'])),
            object: object.name.clone(),
            start: object.start.wrapping_add(from_start).wrapping_add(mapped.bias),
        }
    }
}

impl Functions {
    fn function_at(&self, address: u64) -> Option<&Function> {
        let after = self.functions.partition_point(|function| function.range.start <= address);
        self.functions[..after].last().filter(|function| function.range.contains(&address))
    }

    /// The difference between guest addresses and addresses in the file, if file offset `offset` is mapped as
    /// executable at `start`. `holds` returns whether a guest address is mapped from a file offset.
    ///
    /// Segments that share a page of the file are each mapped with the whole page, so an offset may belong to several
    /// of them. The correct one is consistent with the mappings of all other segments.
    fn bias(&self, start: u64, offset: u64, holds: impl Fn(u64, u64) -> bool) -> u64 {
        if self.is_fixed {
            return 0;
        }
        let candidates = || {
            let code = self.segments.iter().filter(|segment| segment.is_code);
            code.filter(|segment| segment.is_mapped_with(offset)).map(|segment| segment.bias(start, offset))
        };
        let fits = |bias: &u64| {
            let mut in_file = self.segments.iter().filter(|segment| segment.bytes > 0);
            in_file.all(|segment| holds(segment.address.wrapping_add(*bias), segment.offset))
        };
        let bias = candidates().find(fits).or_else(|| candidates().next());
        bias.unwrap_or_else(|| start.wrapping_sub(self.start))
    }
}

fn functions_of(process: &Process, mapping: &Mapping) -> Functions {
    let path = &mapping.origin.name;
    let name = match Path::new(path).file_name() {
        Some(name) if mapping.origin.is_file => name.to_string_lossy().into_owned(),
        _ if path.is_empty() => "[anonymous]".into(),
        _ => path.clone(),
    };
    if may_be_generated(path) {
        let functions = perf_map(process).unwrap_or_default();
        // The map has guest addresses, so the bias is 0.
        let is_fixed = !functions.is_empty();
        return Functions { name, functions, is_fixed, ..Functions::default() };
    }
    let file = mapping.origin.is_file.then(|| process.open_guest_path(Path::new(path)).ok()).flatten();
    let bytes = file.and_then(read_whole).unwrap_or_default();
    Functions { name, ..parse(&bytes).unwrap_or_default() }
}

/// Whether the code of a mapping with this name may come from a just-in-time compiler: anonymous memory, or memory that
/// is mapped twice, once writable and once executable. Source: Linux tools/perf/util/map.c, memfd_create(2).
fn may_be_generated(name: &str) -> bool {
    name.is_empty()
        || ["[heap]", "[stack", "[anon", "/memfd:", "/dev/zero", "/SYSV"]
            .iter()
            .any(|start| name.starts_with(start))
}

/// The functions that a just-in-time compiler has listed for perf: start, size and name in each line. Source: Linux
/// tools/perf/Documentation/jit-interface.txt.
fn perf_map(process: &Process) -> Option<Vec<Function>> {
    let number = if process.simulation().is_some() { i64::from(FIRST_ID) } else { std::process::id().into() };
    let file = process.open_guest_path(Path::new(&format!("/tmp/perf-{number}.map"))).ok()?;
    Some(parse_perf_map(&String::from_utf8_lossy(&read_whole(file)?)))
}

/// A later line replaces earlier ones with the same address: the compiler has reused the memory.
fn parse_perf_map(text: &str) -> Vec<Function> {
    let function = |line: &str| {
        let mut fields = line.splitn(3, ' ');
        let mut number = || u64::from_str_radix(fields.next()?.trim_start_matches("0x"), 16).ok();
        let (start, bytes) = (number()?, number()?);
        let name = fields.next().filter(|name| !name.is_empty())?;
        Some(Function::new(start..start.checked_add(bytes)?, name.to_owned()))
    };
    let mut functions: Vec<Function> = text.lines().rev().filter_map(function).collect();
    functions.sort_by_key(|function| function.range.start);
    functions.dedup_by_key(|function| function.range.start);
    truncate_at_next(&mut functions);
    functions
}

/// The bytes of a file that is not too large to be searched.
pub(crate) fn read_whole(file: File) -> Option<Vec<u8>> {
    let size = file.metadata().ok()?.len();
    let mut bytes = Vec::new();
    (size <= MAX_FILE_BYTES).then(|| file.take(size).read_to_end(&mut bytes).ok()).flatten()?;
    Some(bytes)
}

/// Parses an ELF file; `None` if it is not one.
fn parse(bytes: &[u8]) -> Option<Functions> {
    let file = object::File::parse(bytes).ok()?;
    let segments: Vec<_> = file.segments().map(|segment| loaded(&segment)).collect();
    let start = segments.iter().map(|segment| segment.address).min().unwrap_or(0);
    let mut functions = symbol_table(&file);
    if functions.is_empty() {
        functions = go_table(&file).unwrap_or_default();
    }
    let is_fixed = file.kind() == ObjectKind::Executable;
    Some(Functions { start, functions: ordered(functions), segments, is_fixed, ..Functions::default() })
}

fn loaded(segment: &object::Segment) -> Segment {
    let (offset, bytes) = segment.file_range();
    let is_code = match segment.flags() {
        SegmentFlags::Elf { p_flags, .. } => p_flags.contains(object::elf::PF_X),
        _ => false,
    };
    Segment { offset, bytes, address: segment.address(), is_code }
}

/// The functions in the symbol tables. Functions without a size extend to the end of their section; [`ordered`]
/// truncates them.
fn symbol_table(file: &object::File) -> Vec<Function> {
    let text = |symbol: &object::Symbol| {
        symbol.section_index().and_then(|index| file.section_by_index(index).ok()).filter(|section| {
            symbol.kind() == SymbolKind::Text
                || symbol.kind() == SymbolKind::Unknown && section.kind() == object::SectionKind::Text
        })
    };
    file.symbols()
        .chain(file.dynamic_symbols())
        .filter_map(|symbol| {
            let section = text(&symbol)?;
            let name = symbol.name().ok().filter(|name| is_function(name))?;
            let start = symbol.address();
            let end = match symbol.size() {
                0 => section.address().saturating_add(section.size()),
                size => start.saturating_add(size),
            };
            Some(Function::new(start..end, name.to_owned()))
        })
        .collect()
}

/// Whether a symbol of code names a function: neither a label of the compiler nor one of Arm's mapping symbols `$x` and
/// `$d`, which mark the beginnings of code and data (ELF for the Arm 64-bit Architecture, section 5.5.5).
fn is_function(name: &str) -> bool {
    let mapping = name.strip_prefix('$').and_then(|rest| rest.split('.').next());
    !name.is_empty() && !name.starts_with(".L") && !matches!(mapping, Some("x" | "d"))
}

/// Sorts functions by start, removes duplicates, and truncates each one at the start of the next.
fn ordered(mut functions: Vec<Function>) -> Vec<Function> {
    // Of several aliases, the shortest is usually the public one.
    functions.sort_by(|a, b| {
        let key = |f: &Function| (f.range.start, f.name.len());
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    functions.dedup_by_key(|function| function.range.start);
    truncate_at_next(&mut functions);
    functions
}

/// Ends sorted functions at the start of the next one.
fn truncate_at_next(functions: &mut [Function]) {
    for index in 1..functions.len() {
        let next = functions[index].range.start;
        let range = &mut functions[index - 1].range;
        range.end = range.end.min(next);
    }
}

/// The functions in the table that Go programs keep for stack traces, even if they are stripped. `None` if the file has
/// no such table, or one of an unknown version.
fn go_table(file: &object::File) -> Option<Vec<Function>> {
    const MAGIC_1_18: u32 = 0xffff_fff0;
    const MAGIC_1_20: u32 = 0xffff_fff1;
    let section =
        [".gopclntab", ".data.rel.ro.gopclntab"].iter().find_map(|name| file.section_by_name(name))?;
    let table = section.data().ok()?;
    let word32 = |at: usize| Some(u32::from_le_bytes(table.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let word64 = |at: usize| Some(u64::from_le_bytes(table.get(at..at.checked_add(8)?)?.try_into().ok()?));
    // The header: magic, two zero bytes, the instruction unit, the pointer size, then 64-bit words.
    if !matches!(word32(0)?, MAGIC_1_18 | MAGIC_1_20) || *table.get(7)? != 8 {
        return None;
    }
    let count = usize::try_from(word64(8)?).ok()?;
    let names = usize::try_from(word64(32)?).ok()?;
    let entries = usize::try_from(word64(64)?).ok()?;
    let text_start = match word64(24)? {
        0 => file.section_by_name(".text")?.address(),
        start => start,
    };
    let address = |offset: u32| text_start.wrapping_add(offset.into());
    // Limit the stated count by the size of the table.
    (0..count.min(table.len() / 8))
        .map(|index| {
            let entry = entries.checked_add(8 * index)?;
            let (start, end) = (address(word32(entry)?), address(word32(entry.checked_add(8)?)?));
            let facts = entries.checked_add(word32(entry + 4)? as usize)?;
            let at = names.checked_add(word32(facts.checked_add(4)?)? as usize)?;
            let name = table.get(at..)?.split(|&byte| byte == 0).next()?;
            Some(Function::new(start..end.max(start), String::from_utf8_lossy(name).into_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn function(range: Range<u64>, name: &str) -> Function {
        Function::new(range, name.into())
    }

    #[test]
    fn the_map_of_a_just_in_time_compiler_has_the_latest_functions() {
        let text = "7f00 100 first one\nbroken\n7e00 80 before\n0x7f00 40 second\n7f20 10 inside\n8000 10 \n";
        let found = parse_perf_map(text);
        let expected = [
            function(0x7e00..0x7e80, "before"),
            function(0x7f00..0x7f20, "second"),
            function(0x7f20..0x7f30, "inside"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_function_ends_at_the_next_one_and_has_its_shortest_name() {
        let symbols = vec![
            function(0x300..0x900, "last"),
            function(0x100..0x900, "__first_alias"),
            function(0x100..0x900, "first"),
        ];
        assert_eq!(ordered(symbols), [function(0x100..0x300, "first"), function(0x300..0x900, "last")]);
    }

    #[test]
    fn functions_of_arm_programs_are_not_named_after_mapping_symbols() {
        let guest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/prebuilt/aarch64/sort");
        let functions = parse(&std::fs::read(guest).unwrap()).unwrap().functions;
        assert!(functions.iter().any(|function| function.name == "quicksort"));
        assert!(functions.iter().all(|function| !function.name.starts_with('$')));
        assert!(is_function("$") && is_function("$xyz") && !is_function("$d.12") && !is_function(""));
    }

    fn segment(offset: u64, bytes: u64, address: u64, is_code: bool) -> Segment {
        Segment { offset, bytes, address, is_code }
    }

    #[test]
    fn the_mapped_segment_is_used_if_segments_share_a_file_page() {
        // The layout that lld produces: segments without gaps in the file, each on a new page in memory.
        let object = Functions {
            segments: vec![
                segment(0, 0x1234, 0x1_0000, false),
                segment(0x1234, 0x800, 0x1_5234, true),
                segment(0x1a34, 0x7000, 0x1_9a34, true),
                segment(0x8a34, 0x200, 0x2_4a34, false),
                segment(0x8c34, 0, 0x2_8c34, false),
            ],
            ..Functions::default()
        };
        let bias = 0x55_0000;
        let holds = |address: u64, offset: u64| {
            let mut parts = object.segments.iter().filter(|part| part.bytes > 0);
            parts.any(|part| part.address + bias == address && part.offset == offset)
        };
        for segment in object.segments.iter().filter(|segment| segment.is_code) {
            let page = longma_guest::PAGE_BYTES;
            let (start, offset) = ((segment.address + bias) / page * page, segment.offset / page * page);
            assert_eq!(object.bias(start, offset, holds), bias, "{segment:x?}");
            let fixed =
                Functions { segments: object.segments.clone(), is_fixed: true, ..Functions::default() };
            assert_eq!(fixed.bias(start - bias, offset, |_, _| false), 0);
        }
    }

    #[test]
    fn an_address_without_a_function_is_found_in_a_range_of_its_file() {
        let object = Functions {
            name: "program".into(),
            start: 0x1_0000,
            functions: vec![function(0x1_0100..0x1_0200, "main")],
            segments: vec![segment(0, 0x4000, 0x1_0000, true)],
            is_fixed: false,
        };
        let bias = object.bias(0x50_0000, 0, |_, _| true);
        let symbols = Symbols {
            mapped: vec![Mapped {
                range: 0x50_0000..0x50_4000,
                bias,
                object: Rc::new(object),
                path: None,
                offset: 0,
            }],
        };
        let main = CodeLocation { function: "main".into(), object: "program".into(), start: 0x50_0100 };
        assert_eq!(symbols.find(0x50_0100), main);
        assert_eq!(symbols.find(0x50_01fc), main);
        let unnamed = symbols.find(0x50_0904);
        assert_eq!((unnamed.function.as_str(), unnamed.start), ("[program+0x800]", 0x50_0800));
        assert_eq!(symbols.find(0x60_0000).object, "[unmapped]");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn a_damaged_program_does_not_panic(
            changes in prop::collection::vec((0usize..20000, any::<u8>()), 1..40),
        ) {
            let guest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/prebuilt/loongarch64/hello");
            let mut bytes = std::fs::read(guest).unwrap();
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            let _ = parse(&bytes);
        }
    }
}
