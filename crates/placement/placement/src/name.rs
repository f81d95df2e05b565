//! Syntax of the names of hosts, virtual machines, tenants, groups and tokens. The store checks that a name is unique.

/// Returns the error in `name`, or `None` if it is valid. The syntax is narrow because names appear in file names, XML
/// and command lines.
pub fn name_problem(name: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match name {
        "" => Some("must not be empty".into()),
        _ if name.len() > 63 => Some(format!("has {} characters; at most 63", name.len())),
        _ if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) => {
            Some("must begin with a letter or a digit".into())
        }
        _ if !name.chars().all(good) => Some("may contain only letters, digits, `-`, `_` and `.`".into()),
        _ => None,
    }
}
