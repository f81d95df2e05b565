//! Sampled call stacks as a profile for pprof: functions, lines, inlined calls and threads. Source: proto/profile.proto
//! of github.com/google/pprof.

use std::collections::HashMap;
use std::io::Read;

use flate2::{Compression, bufread::GzEncoder};
use longma_runner::{
    AddressStack, Report, SourceFrame, SourceLines,
    symbols::{CodeLocation, MappedFile, Symbols},
};
use prost::Message;

/// The messages of pprof's profiles, with the fields that are used here.
pub mod messages {
    /// A profile. Texts are indices into `string_table`, whose first entry is empty.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        /// What the values of a sample count.
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        /// The samples.
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        /// The mapped files.
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        /// The places in code that occur in samples.
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        /// The functions that occur in locations.
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        /// All texts.
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        /// What separates two samples.
        #[prost(message, optional, tag = "11")]
        pub period_type: Option<ValueType>,
        /// The number of such events between two samples.
        #[prost(int64, tag = "12")]
        pub period: i64,
    }

    /// The kind and unit of a value.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ValueType {
        /// The kind.
        #[prost(int64, tag = "1")]
        pub kind: i64,
        /// The unit.
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    /// Equal samples.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        /// The stack, the innermost location first.
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        /// One value for each sample type.
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
        /// The thread.
        #[prost(message, repeated, tag = "3")]
        pub label: Vec<Label>,
    }

    /// A property of samples.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Label {
        /// Its name.
        #[prost(int64, tag = "1")]
        pub key: i64,
        /// Its value, if it is a text.
        #[prost(int64, tag = "2")]
        pub str: i64,
    }

    /// A mapped file.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Mapping {
        /// Its number, from 1.
        #[prost(uint64, tag = "1")]
        pub id: u64,
        /// The first guest address.
        #[prost(uint64, tag = "2")]
        pub memory_start: u64,
        /// The address behind the last one.
        #[prost(uint64, tag = "3")]
        pub memory_limit: u64,
        /// The offset in the file of the first address.
        #[prost(uint64, tag = "4")]
        pub file_offset: u64,
        /// The file's guest path.
        #[prost(int64, tag = "5")]
        pub filename: i64,
        /// Whether locations have functions.
        #[prost(bool, tag = "7")]
        pub has_functions: bool,
        /// Whether functions have files.
        #[prost(bool, tag = "8")]
        pub has_filenames: bool,
        /// Whether locations have lines.
        #[prost(bool, tag = "9")]
        pub has_line_numbers: bool,
        /// Whether locations have inlined functions.
        #[prost(bool, tag = "10")]
        pub has_inline_frames: bool,
    }

    /// An address in code.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        /// Its number, from 1.
        #[prost(uint64, tag = "1")]
        pub id: u64,
        /// The mapping that contains it; 0 for none.
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        /// The guest address.
        #[prost(uint64, tag = "3")]
        pub address: u64,
        /// The functions that contain it, the innermost inlined one first.
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    /// A line of a function.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Line {
        /// The function.
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
        /// The line; 0 if it is not known.
        #[prost(int64, tag = "2")]
        pub line: i64,
    }

    /// A function.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Function {
        /// Its number, from 1.
        #[prost(uint64, tag = "1")]
        pub id: u64,
        /// Its name.
        #[prost(int64, tag = "2")]
        pub name: i64,
        /// The name in the symbol table, here the same.
        #[prost(int64, tag = "3")]
        pub system_name: i64,
        /// The source file.
        #[prost(int64, tag = "4")]
        pub filename: i64,
    }
}

use messages::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};

/// Describes code at guest addresses.
trait Code {
    fn files(&self) -> Vec<MappedFile<'_>>;
    fn function(&self, address: u64) -> CodeLocation;
    /// As [`SourceLines::frames`].
    fn frames(&mut self, address: u64) -> Vec<SourceFrame>;
}

struct Mapped<'a> {
    /// The program's file.
    program: String,
    symbols: &'a Symbols,
    lines: SourceLines,
}

impl Code for Mapped<'_> {
    fn files(&self) -> Vec<MappedFile<'_>> {
        let mut files: Vec<_> = self.symbols.mapped_files().collect();
        // pprof takes the first mapping for the program.
        files.sort_by_key(|file| file.path != self.program);
        files
    }

    fn function(&self, address: u64) -> CodeLocation {
        self.symbols.find(address)
    }

    fn frames(&mut self, address: u64) -> Vec<SourceFrame> {
        self.lines.frames(address)
    }
}

/// The stacks of a program that has ended as a compressed profile. They were sampled every `period` events of the kind
/// and unit `unit`.
pub fn compressed(report: &Report, period: u64, unit: [&str; 2]) -> Vec<u8> {
    let symbols = report.symbols();
    let code = Mapped { program: report.program(), lines: report.source_lines(&symbols), symbols: &symbols };
    let bytes = profile(&report.address_stacks(), period, unit, code).encode_to_vec();
    let mut compressed = Vec::new();
    let mut gzip = GzEncoder::new(&bytes[..], Compression::default());
    gzip.read_to_end(&mut compressed).expect("memory is readable");
    compressed
}

fn profile(stacks: &[AddressStack], period: u64, [kind, unit]: [&str; 2], mut code: impl Code) -> Profile {
    let mut made = Builder::default();
    made.text("");
    let value_type = ValueType { kind: made.text(kind), unit: made.text(unit) };
    made.profile.period_type = Some(value_type.clone());
    made.profile.sample_type = vec![value_type];
    made.profile.period = period as i64;
    for (file, id) in code.files().iter().zip(1..) {
        let mapping = Mapping {
            id,
            memory_start: file.range.start,
            memory_limit: file.range.end,
            file_offset: file.offset,
            filename: made.text(file.path),
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        };
        made.profile.mapping.push(mapping);
    }
    let key = made.text("thread");
    for stack in stacks {
        let location_id = stack.addresses.iter().map(|address| made.location(*address, &mut code)).collect();
        let label = vec![Label { key, str: made.text(&stack.thread.to_string()) }];
        made.profile.sample.push(Sample { location_id, value: vec![stack.weight as i64], label });
    }
    made.profile
}

/// A profile with the indices of what it already has.
#[derive(Default)]
struct Builder {
    profile: Profile,
    texts: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<u64, u64>,
}

impl Builder {
    fn text(&mut self, text: &str) -> i64 {
        if let Some(index) = self.texts.get(text) {
            return *index;
        }
        let index = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.into());
        self.texts.insert(text.into(), index);
        index
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let (name, filename) = (self.text(name), self.text(file));
        let next = self.functions.len() as u64 + 1;
        let id = *self.functions.entry((name, filename)).or_insert(next);
        if id == next {
            self.profile.function.push(Function { id, name, system_name: name, filename });
        }
        id
    }

    fn location(&mut self, address: u64, code: &mut impl Code) -> u64 {
        if let Some(id) = self.locations.get(&address) {
            return *id;
        }
        let symbol = code.function(address).function;
        let mut frames = code.frames(address);
        // The symbol names the outermost function, as in the other outputs, unless only the debug information has a name.
        match frames.last_mut() {
            Some(outermost) if outermost.function.is_some() && symbol.starts_with('[') => {}
            Some(outermost) => outermost.function = Some(symbol),
            None => frames.push(SourceFrame { function: Some(symbol), line: None }),
        }
        let line = frames
            .into_iter()
            .map(|frame| {
                let (file, line) = frame.line.map_or(("".into(), 0), |line| (line.file, line.line));
                let function = frame.function.unwrap_or_else(|| "[inlined]".into());
                Line { function_id: self.function(&function, &file), line: line.into() }
            })
            .collect();
        let mappings = self.profile.mapping.iter();
        let mapping_id = mappings
            .filter(|mapping| (mapping.memory_start..mapping.memory_limit).contains(&address))
            .map(|mapping| mapping.id)
            .next()
            .unwrap_or(0);
        let id = self.profile.location.len() as u64 + 1;
        self.profile.location.push(Location { id, mapping_id, address, line });
        self.locations.insert(address, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_runner::SourceLine;

    /// A file at 0x1000 to 0x2000: `main` at line 7 calls `outer`, into which `inner` is inlined.
    struct Described;

    impl Code for Described {
        fn files(&self) -> Vec<MappedFile<'_>> {
            vec![MappedFile { range: 0x1000..0x2000, offset: 0x400, path: "/bin/program" }]
        }

        fn function(&self, address: u64) -> CodeLocation {
            let function = if address < 0x1100 { "main" } else { "outer" };
            CodeLocation { function: function.into(), object: "program".into(), start: address }
        }

        fn frames(&mut self, address: u64) -> Vec<SourceFrame> {
            let frame = |name: &str, line| SourceFrame {
                function: Some(name.into()),
                line: Some(SourceLine { file: "program.c".into(), line }),
            };
            match address {
                0x1010 => vec![frame("main", 7)],
                0x1110 => vec![frame("inner", 3), frame("outer.part.0", 5)],
                _ => Vec::new(),
            }
        }
    }

    #[test]
    fn locations_have_lines_and_inlined_functions() {
        let stack =
            |thread, addresses: &[u64], weight| AddressStack { thread, addresses: addresses.into(), weight };
        let stacks = [stack(1, &[0x1110, 0x1010], 30), stack(2, &[0x9000], 12)];
        let found = profile(&stacks, 10, ["instructions", "count"], Described);
        let found = Profile::decode(&*found.encode_to_vec()).unwrap();
        let text = |index: i64| found.string_table[index as usize].as_str();
        assert_eq!(found.string_table[0], "");
        assert_eq!((text(found.sample_type[0].kind), found.period), ("instructions", 10));
        let lines = |id: u64| -> Vec<(&str, &str, i64)> {
            let location = &found.location[id as usize - 1];
            let named = |line: &Line| {
                let function = &found.function[line.function_id as usize - 1];
                (text(function.name), text(function.filename), line.line)
            };
            location.line.iter().map(named).collect()
        };
        let [first, second] = &found.sample[..] else { panic!("{found:?}") };
        assert_eq!(lines(first.location_id[0]), [("inner", "program.c", 3), ("outer", "program.c", 5)]);
        assert_eq!(lines(first.location_id[1]), [("main", "program.c", 7)]);
        assert_eq!(lines(second.location_id[0]), [("outer", "", 0)]);
        assert_eq!(
            (first.value[0], text(second.label[0].key), text(second.label[0].str)),
            (30, "thread", "2")
        );
        assert_eq!(found.location.iter().map(|location| location.mapping_id).collect::<Vec<_>>(), [1, 1, 0]);
    }
}
