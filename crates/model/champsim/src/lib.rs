//! Instruction traces in ChampSim's format: written from execution traces, and turned into execution traces.
//!
//! Source: ChampSim, inc/trace_instruction.h ("input_instr", 64 bytes) and inc/instruction.h (how a branch's kind follows from
//! its registers).

mod code;
mod encode;
mod file;
mod instruction;
mod replay;

pub use code::{Code, CodeError, MAX_SITES};
pub use encode::Writer;
pub use file::{OpenError, Output, ReadError, Reader};
pub use instruction::{BranchKind, Instruction, RECORD_BYTES, RecordError};
pub use replay::Replay;
