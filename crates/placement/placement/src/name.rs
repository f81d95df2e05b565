//! What may be the name of a host, a virtual machine, a tenant, a group or a token.
//! Not whether it is taken: the store knows that.

/// Why `name` is no name; none if it is one. Names go into file names, XML and commands, so they are narrow.
pub fn name_problem(name: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match name {
        "" => Some("must not be empty".into()),
        _ if name.len() > 63 => Some(format!("has {} characters; at most 63", name.len())),
        _ if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) => {
            Some("must begin with a letter or a digit".into())
        }
        _ if !name.chars().all(good) => Some("may hold letters, digits, `-`, `_` and `.` only".into()),
        _ => None,
    }
}
