//! The costs of a functional run: of all programs of a process, as perf-stat(1) counts them. When an execve on the host
//! restarts the command, a file passes it the costs so far.

use longma_runner::{profile::FunctionShare, symbols::CodeLocation};
use serde::{Deserialize, Serialize};

/// The sums over all programs of a process so far, with or without the current program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// The programs in the order of their execution.
    pub programs: Vec<String>,
    /// LoongArch instructions.
    pub instructions: u64,
    /// The instruction set of the translated programs, if there is one.
    pub source: Option<String>,
    /// Instructions of the programs' own instruction sets.
    pub source_instructions: u64,
    /// Decoded blocks.
    pub blocks: u64,
    /// Blocks translated one by one.
    pub translated_blocks: u64,
    /// Blocks translated together.
    pub regions: u64,
    /// Wall time in seconds.
    pub wall_s: f64,
    /// The functions, in descending order of their instructions.
    pub functions: Vec<Function>,
}

/// A function with its instructions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// The function's name.
    pub function: String,
    /// The file's name.
    pub object: String,
    /// The guest address of its first byte.
    pub start: u64,
    /// Instructions executed in it.
    pub instructions: u64,
}

impl Costs {
    /// The costs in a file of `--earlier-programs`.
    ///
    /// # Errors
    /// The file has other contents.
    pub fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The contents of the file of `--earlier-programs`.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Serialization fails only for maps with keys that are not strings.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The functions, in descending order of their instructions.
    pub fn functions(&self) -> Vec<FunctionShare> {
        let share = |function: &Function| FunctionShare {
            place: CodeLocation {
                function: function.function.clone(),
                object: function.object.clone(),
                start: function.start,
            },
            instructions: function.instructions,
        };
        self.functions.iter().map(share).collect()
    }

    /// Sets the functions of a single program.
    pub fn set_functions(&mut self, shares: Vec<FunctionShare>) {
        let function = |share: FunctionShare| Function {
            function: share.place.function,
            object: share.place.object,
            start: share.place.start,
            instructions: share.instructions,
        };
        self.functions = shares.into_iter().map(function).collect();
    }

    /// Adds the costs of the next program.
    pub fn followed_by(&self, next: Self) -> Self {
        let mut functions = self.functions.clone();
        for function in next.functions {
            let is_same = |other: &&mut Function| {
                (&other.function, &other.object, other.start)
                    == (&function.function, &function.object, function.start)
            };
            match functions.iter_mut().find(is_same) {
                Some(same) => same.instructions += function.instructions,
                None => functions.push(function),
            }
        }
        functions.sort_by(|a, b| b.instructions.cmp(&a.instructions).then(a.start.cmp(&b.start)));
        let source = match (&self.source, next.source) {
            (Some(earlier), Some(later)) if *earlier != later => Some("several instruction sets".into()),
            (earlier, later) => later.or_else(|| earlier.clone()),
        };
        Self {
            programs: [self.programs.clone(), next.programs].concat(),
            instructions: self.instructions + next.instructions,
            source,
            source_instructions: self.source_instructions + next.source_instructions,
            blocks: self.blocks + next.blocks,
            translated_blocks: self.translated_blocks + next.translated_blocks,
            regions: self.regions + next.regions,
            wall_s: self.wall_s + next.wall_s,
            functions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, function: &str, instructions: u64) -> Costs {
        let place = CodeLocation { function: function.into(), object: "o".into(), start: 4 };
        let mut costs = Costs { programs: vec![name.into()], instructions, ..Costs::default() };
        costs.set_functions(vec![FunctionShare { place, instructions }]);
        costs
    }

    #[test]
    fn the_costs_of_programs_add_up_and_survive_the_file() {
        let sum = Costs::default().followed_by(program("sh", "main", 5));
        let sum = sum.followed_by(program("sort", "qsort", 30)).followed_by(program("sh", "main", 40));
        assert_eq!(serde_json::from_slice::<Costs>(&sum.to_bytes()).unwrap(), sum);
        assert_eq!((sum.programs.join(" "), sum.instructions), ("sh sort sh".into(), 75));
        let shares: Vec<_> =
            sum.functions().into_iter().map(|share| (share.place.function, share.instructions)).collect();
        assert_eq!(shares, [("main".into(), 45), ("qsort".into(), 30)]);
    }
}
