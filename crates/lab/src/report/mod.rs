//! stub
use crate::*;
/// x
pub struct Chapter<'a> {
    /// x
    pub campaign: Campaign<'a>,
    /// x
    pub table: Table,
    /// x
    pub command: String,
}
/// x
pub fn page(_c: &[Chapter<'_>], _v: &str) -> String {
    String::new()
}
