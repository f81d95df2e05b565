//! The `longma` command.

fn main() {}
