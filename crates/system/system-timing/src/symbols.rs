//! The functions of a kernel, from a symbol table in text or from `vmlinux`. Source: Linux, scripts/kallsyms.c and
//! nm(1) for the format of System.map and /proc/kallsyms; System V ABI, chapter 4 (symbol table).

use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

/// Code without a symbol is grouped into ranges of this many bytes.
const UNNAMED_BYTES: u64 = 4096;
/// The maximum length of a function. Usually the next symbol ends it.
const MAX_FUNCTION_BYTES: u64 = 1 << 20;

/// The file has no usable symbols.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SymbolsError {
    /// A line is not `ADDRESS TYPE NAME`.
    #[error("line {0} is not a symbol (`ADDRESS TYPE NAME`, as in System.map and /proc/kallsyms)")]
    Line(usize),
    /// There are symbols, but none of a function.
    #[error(
        "the file has no functions: give vmlinux with symbols, System.map, or a copy of the guest's /proc/kallsyms"
    )]
    NoFunctions,
    /// All addresses are 0.
    #[error("all addresses are 0: read /proc/kallsyms as root, with kernel.kptr_restrict at 0 or 1")]
    Hidden,
}

/// A function or a range without symbols.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeRange {
    /// The address of its first byte.
    pub start: u64,
    /// Its name, or `[0x...]` for a range without symbols.
    pub function: String,
    /// `kernel`, or the module's name.
    pub object: String,
}

/// The functions of a kernel and its modules, by address.
#[derive(Clone, Debug, Default)]
pub struct KernelSymbols {
    /// Sorted by start, without duplicates.
    places: Vec<CodeRange>,
}

impl KernelSymbols {
    /// Reads `vmlinux`, or a text with a line `ADDRESS TYPE NAME` for each symbol, where a module's name follows in
    /// brackets.
    ///
    /// # Errors
    /// The file has another format, or no functions.
    pub fn parse(bytes: &[u8]) -> Result<Self, SymbolsError> {
        let places = match object::File::parse(bytes) {
            Ok(file) => of_elf(&file),
            Err(_) => of_text(bytes)?,
        };
        Self::of(places)
    }

    pub(crate) fn of(mut places: Vec<CodeRange>) -> Result<Self, SymbolsError> {
        if places.is_empty() {
            return Err(SymbolsError::NoFunctions);
        }
        if places.iter().all(|place| place.start == 0) {
            return Err(SymbolsError::Hidden);
        }
        // If an address has several names, the shortest is usually the public name.
        places.sort_by(|a, b| {
            let key = |place: &CodeRange| (place.start, place.function.len());
            key(a).cmp(&key(b)).then_with(|| a.function.cmp(&b.function))
        });
        places.dedup_by_key(|place| place.start);
        Ok(Self { places })
    }

    /// The number of functions.
    pub fn functions(&self) -> usize {
        self.places.len()
    }

    /// The function that contains `address`, or a range of 4 KiB.
    pub fn find(&self, address: u64) -> CodeRange {
        let after = self.places.partition_point(|place| place.start <= address);
        match self.places[..after].last() {
            Some(place) if address - place.start < MAX_FUNCTION_BYTES => place.clone(),
            _ => {
                let start = address / UNNAMED_BYTES * UNNAMED_BYTES;
                CodeRange { start, function: format!("[{start:#x}]"), object: "kernel".into() }
            }
        }
    }
}

fn of_elf(file: &object::File) -> Vec<CodeRange> {
    let symbols = file.symbols().filter_map(|symbol| {
        let section = file.section_by_index(symbol.section_index()?).ok()?;
        let is_code = symbol.kind() == SymbolKind::Text
            || symbol.kind() == SymbolKind::Unknown && section.kind() == SectionKind::Text;
        let name = symbol.name().ok().filter(|name| is_code && is_function(name))?;
        Some(CodeRange { start: symbol.address(), function: name.into(), object: "kernel".into() })
    });
    symbols.collect()
}

fn of_text(bytes: &[u8]) -> Result<Vec<CodeRange>, SymbolsError> {
    let mut places = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let words = std::str::from_utf8(line).ok().map(|line| line.split_ascii_whitespace());
        let place = words.and_then(|mut words| {
            let start = u64::from_str_radix(words.next()?, 16).ok()?;
            let kind = words.next().filter(|kind| kind.len() == 1)?;
            let function = words.next()?;
            let module = words.next().map(|module| module.trim_matches(['[', ']']));
            let place =
                CodeRange { start, function: function.into(), object: module.unwrap_or("kernel").into() };
            Some((kind, place))
        });
        let (kind, place) = place.ok_or(SymbolsError::Line(number))?;
        // Text symbols, global, local and weak.
        if matches!(kind, "T" | "t" | "W" | "w") && is_function(&place.function) {
            places.push(place);
        }
    }
    Ok(places)
}

/// Whether a symbol is not a label inside a function.
fn is_function(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(".L") && !name.starts_with('$')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "9000000000201000 T _stext\n\
        9000000000201000 t first\n\
        9000000000202000 t pipe_write\n\
        9000000000202800 D data\n\
        ffff800002a30000 t igb_poll\t[igb]\n";

    #[test]
    fn functions_of_kernel_and_modules_are_found_by_address() {
        let symbols = KernelSymbols::parse(TEXT.as_bytes()).unwrap();
        let name = |address| symbols.find(address).function;
        assert_eq!(name(0x9000_0000_0020_1000), "first", "the shortest name of several");
        assert_eq!(name(0x9000_0000_0020_2fff), "pipe_write");
        assert_eq!(symbols.find(0xffff_8000_02a3_0004).object, "igb");
        assert_eq!(name(0x9000_0000_0020_0fff), "[0x9000000000200000]");
        assert_eq!(name(0xffff_8000_02c3_0004), "[0xffff800002c30000]", "too far behind the last function");
    }

    #[test]
    fn what_is_no_table_of_symbols_is_refused() {
        let refused = |text: &str| KernelSymbols::parse(text.as_bytes()).unwrap_err();
        assert_eq!(refused(""), SymbolsError::NoFunctions);
        assert_eq!(refused("9000 D data\n"), SymbolsError::NoFunctions);
        assert_eq!(refused("9000 T f\nhello\n"), SymbolsError::Line(2));
        assert_eq!(refused("0000 T f\n0000 t g\n"), SymbolsError::Hidden);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096), address: u64) {
            if let Ok(symbols) = KernelSymbols::parse(&bytes) {
                symbols.find(address);
            }
        }

        #[test]
        fn arbitrary_lines_do_not_panic(lines in "([0-9a-f]{0,20} [a-zA-Z] [a-z_.$]{0,9}( \\[[a-z]*\\])?\n){0,20}", address: u64) {
            if let Ok(symbols) = KernelSymbols::parse(lines.as_bytes()) {
                symbols.find(address);
            }
        }
    }
}
