//! Which options belong to which way of measuring: what another way has no use for is refused, and never left out without a word.
//! Not what the options mean: that is with the commands that have them.

/// Where a result comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Two network namespaces of this host.
    Lab,
    /// iperf3 on another host.
    Connect,
    /// A load of one's own.
    Command,
    /// A modelled machine.
    Model,
    /// A file of results.
    Results,
    /// Where the CPUs are, with nothing measured.
    Topology,
}

/// An option, whether it is given, and the ways that it belongs to.
pub type Limited = (&'static str, bool, &'static [Way]);

impl Way {
    /// What asks for it.
    fn words(self) -> &'static str {
        match self {
            Self::Lab => "--lab",
            Self::Connect => "--connect",
            Self::Command => "a load of one's own (-- COMMAND)",
            Self::Model => "--model",
            Self::Results => "--results",
            Self::Topology => "advice from topology alone",
        }
    }
}

/// Refuses the first option that does not belong to `way`.
///
/// # Errors
/// Its name, the ways that it belongs to, and what to do.
pub fn fit(way: Way, options: &[Limited]) -> Result<(), String> {
    let is_wrong = |(_, is_given, ways): &&Limited| *is_given && !ways.contains(&way);
    let Some((name, _, ways)) = options.iter().find(is_wrong) else { return Ok(()) };
    let list: Vec<&str> = ways.iter().map(|way| way.words()).collect();
    let list = match &list[..] {
        [only] => only.to_string(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
        [] => "nothing".into(),
    };
    let instead = match (*name, way) {
        ("--mtu", Way::Connect | Way::Command) => "vary that of an interface with --vary mtu=BYTES",
        (_, Way::Topology) => "a measurement is asked for by --connect HOST or --lab",
        _ => "leave it out",
    };
    Err(format!("{name} belongs to {list}, and not to {}: {instead}", way.words()))
}
