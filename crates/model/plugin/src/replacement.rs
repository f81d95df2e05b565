//! A replacement policy as a WebAssembly module.

use crate::sandbox::{PluginError, Sandbox};
use wasmi::TypedFunc;

/// Why a line of a cache is used or filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum AccessKind {
    /// A load.
    Load = 0,
    /// A store or an atomic operation.
    Store = 1,
    /// An instruction fetch.
    Fetch = 2,
    /// A prefetch, by an instruction or by hardware.
    Prefetch = 3,
    /// A device's read or write.
    Device = 4,
    /// A line that moves here from a cache above.
    WriteBack = 5,
}

/// A use or a fill of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheAccess {
    /// The set of the line.
    pub set: u32,
    /// The line number.
    pub line: u64,
    /// Address of the instruction that caused it; 0 if there is none.
    pub instruction: u64,
    /// Its kind.
    pub kind: AccessKind,
}

/// The structure of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Number of sets.
    pub sets: u32,
    /// Ways of a set.
    pub ways: u32,
    /// Size of a line in bytes.
    pub line_bytes: u32,
}

/// Arguments of `used` and `filled`.
type UseArguments = (i32, i32, i64, i64, i32);

/// An instance of a module, for one cache.
#[derive(Debug)]
pub struct ReplacementPlugin {
    sandbox: Sandbox<()>,
    used: TypedFunc<UseArguments, ()>,
    filled: TypedFunc<UseArguments, ()>,
    victim: TypedFunc<(i32, i64, i64, i64, i32), i32>,
    removed: Option<TypedFunc<(i32, i32), ()>>,
}

impl ReplacementPlugin {
    /// Creates an instance of the module `bytes` and calls its `start`, if it has one.
    ///
    /// # Errors
    /// If it is not a valid module, exceeds a limit, lacks a function, imports anything, or its start fails.
    pub fn new(bytes: &[u8], shape: CacheShape) -> Result<Self, PluginError> {
        let mut sandbox = Sandbox::without_imports(bytes, "replacement policies")?;
        let used =
            sandbox.required("used", "`used(set: i32, way: i32, line: i64, instruction: i64, kind: i32)`")?;
        let filled = sandbox
            .required("filled", "`filled(set: i32, way: i32, line: i64, instruction: i64, kind: i32)`")?;
        let victim = sandbox.required(
            "victim",
            "`victim(set: i32, ways: i64, line: i64, instruction: i64, kind: i32) -> i32`",
        )?;
        let removed = sandbox.optional("removed", "`removed(set: i32, way: i32)`")?;
        let CacheShape { sets, ways, line_bytes } = shape;
        let arguments = (sets as i32, ways as i32, line_bytes as i32);
        sandbox.start("`start(sets: i32, ways: i32, line_bytes: i32)`", arguments)?;
        Ok(Self { sandbox, used, filled, victim, removed })
    }

    /// Reports a use of the line in `way`.
    pub fn used(&mut self, way: u32, access: CacheAccess) {
        self.sandbox.call("used", self.used, arguments(way, access));
    }

    /// Reports that a line was filled into `way`.
    pub fn filled(&mut self, way: u32, access: CacheAccess) {
        self.sandbox.call("filled", self.filled, arguments(way, access));
    }

    /// Chooses one of the ways in the mask `allowed`, which must not be empty, for the line of `access`. After a
    /// failure, it is the first one.
    pub fn victim(&mut self, allowed: u64, access: CacheAccess) -> u32 {
        let CacheAccess { set, line, instruction, kind } = access;
        let arguments = (set as i32, allowed as i64, line as i64, instruction as i64, kind as i32);
        if let Some(way) = self.sandbox.call("victim", self.victim, arguments) {
            match u32::try_from(way) {
                Ok(way) if way < u64::BITS && allowed >> way & 1 == 1 => return way,
                _ => self.sandbox.fail(PluginError::Way { way, allowed }),
            }
        }
        allowed.trailing_zeros()
    }

    /// Reports that `way` of `set` became empty.
    pub fn removed(&mut self, set: u32, way: u32) {
        if let Some(removed) = self.removed {
            self.sandbox.call("removed", removed, (set as i32, way as i32));
        }
    }

    /// The first failure of the module. After it, the choices are meaningless.
    pub fn failure(&self) -> Option<&PluginError> {
        self.sandbox.failure()
    }
}

fn arguments(way: u32, access: CacheAccess) -> UseArguments {
    let CacheAccess { set, line, instruction, kind } = access;
    (set as i32, way as i32, line as i64, instruction as i64, kind as i32)
}
