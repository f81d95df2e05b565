//! The LoongArch instruction set: decode, encode, print and reference semantics from one table.
