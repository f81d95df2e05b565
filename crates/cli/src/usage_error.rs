//! Prints clap's usage errors and help texts. Control characters in the user's arguments are escaped, so that echoing
//! an argument cannot control the terminal.

use clap::builder::StyledStr;
use clap::error::ContextValue;
use longma_text::{sanitize, sanitize_lines};
use std::io::Write as _;

/// Prints the message to the stream that clap chose for it. Write errors are ignored.
pub fn print(error: &clap::Error) {
    let message = error.render().to_string();
    let shown = without_control_characters(&message, error);
    // Only clap colours the message, so print it through clap unless an argument had to be escaped.
    let _ = match shown == message {
        true => error.print(),
        false => write!(std::io::stderr(), "{shown}"),
    };
}

fn without_control_characters(message: &str, error: &clap::Error) -> String {
    let mut message = message.to_string();
    for (_, value) in error.context() {
        let arguments = match value {
            ContextValue::String(one) => std::slice::from_ref(one),
            ContextValue::Strings(several) => several,
            _ => continue,
        };
        // Escape line breaks in arguments, but keep those of the message. The message contains arguments without colour
        // codes, so search for them in that form.
        for text in arguments.iter().filter(|text| text.contains('\n')) {
            let text = StyledStr::from(text.clone()).to_string();
            message = message.replace(&text, &sanitize(&text));
        }
    }
    sanitize_lines(&message)
}
