//! Checks which options apply to which kind of measurement. An option that would have no effect is rejected, not
//! ignored.

/// A source of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Two network namespaces of this host.
    Lab,
    /// An iperf3 server on another host.
    Connect,
    /// A load command of the user.
    Command,
    /// A modelled machine.
    Model,
    /// A results file.
    Results,
    /// The topology of the CPUs alone, without a measurement.
    Topology,
}

/// An option, whether it is given, and the sources that it applies to.
pub type ScopedOption = (&'static str, bool, &'static [Method]);

impl Method {
    /// The option that selects the source.
    fn words(self) -> &'static str {
        match self {
            Self::Lab => "--lab",
            Self::Connect => "--connect",
            Self::Command => "a load command (-- COMMAND)",
            Self::Model => "--model",
            Self::Results => "--results",
            Self::Topology => "advice from topology alone",
        }
    }
}

/// Rejects the first given option that does not apply to `method`.
///
/// # Errors
/// The text names the option, the sources that it applies to, and a remedy.
pub fn check(method: Method, options: &[ScopedOption]) -> Result<(), String> {
    let is_wrong = |(_, is_given, methods): &&ScopedOption| *is_given && !methods.contains(&method);
    let Some((name, _, methods)) = options.iter().find(is_wrong) else { return Ok(()) };
    let list: Vec<&str> = methods.iter().map(|method| method.words()).collect();
    let list = match &list[..] {
        [only] => only.to_string(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
        [] => "nothing".into(),
    };
    let instead = match (*name, method) {
        ("--mtu", Method::Connect | Method::Command) => "vary the MTU of an interface with --vary mtu=BYTES",
        (_, Method::Topology) => "to measure, add --connect HOST or --lab",
        _ => "leave it out",
    };
    Err(format!("{name} applies to {list}, not to {}: {instead}", method.words()))
}
