//! What is said of a command line that cannot be carried out, and the help that is asked for: clap's words, in which what was typed gives a
//! terminal no orders.

use clap::builder::StyledStr;
use clap::error::ContextValue;
use longma_topology::{sanitize, sanitize_lines};
use std::io::Write as _;

/// Prints it where it belongs. Whoever has closed that does not want to hear it.
pub fn say(error: &clap::Error) {
    let words = error.render().to_string();
    let shown = without_orders(&words, error);
    // Colours are clap's own, and only in its own words.
    let _ = match shown == words {
        true => error.print(),
        false => write!(std::io::stderr(), "{shown}"),
    };
}

fn without_orders(words: &str, error: &clap::Error) -> String {
    let mut words = words.to_string();
    for (_, value) in error.context() {
        let typed = match value {
            ContextValue::String(one) => std::slice::from_ref(one),
            ContextValue::Strings(several) => several,
            _ => continue,
        };
        // Line ends in what was typed are none of the message's own. It is looked for as the message has it, without orders for colours.
        for text in typed.iter().filter(|text| text.contains('\n')) {
            let text = StyledStr::from(text.clone()).to_string();
            words = words.replace(&text, &sanitize(&text));
        }
    }
    sanitize_lines(&words)
}
