//! `longma boot debian`: builds the image on first use and shows the progress.

use indicatif::{ProgressBar, ProgressStyle};
use longma_debian::{Archive, Image, ImageError, Observer, Source, cache_folder, image};
use std::io::IsTerminal;

/// The kernel's command line. Without the blacklist, Debian's kernel probes for a keyboard controller at addresses
/// where the machine has no device.
pub const COMMAND_LINE: &str = "console=ttyS0,115200 rdinit=/init initcall_blacklist=i8042_init quiet";

/// The image in the user's cache, built if it is missing.
///
/// # Errors
/// The image cannot be built, or is missing and `is_offline` is true.
pub fn debian(is_offline: bool) -> Result<Image, ImageError> {
    let source = if is_offline { Source::Cache } else { Source::Archive(Archive::of_environment()) };
    let mut progress = Progress { bar: None, is_terminal: std::io::stderr().is_terminal() };
    let image = image(&cache_folder()?, &source, &mut progress);
    progress.end();
    image
}

/// Shows the steps of the build: as bars on a terminal, otherwise as lines.
struct Progress {
    bar: Option<ProgressBar>,
    is_terminal: bool,
}

impl Progress {
    /// Removes the bar.
    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Observer for Progress {
    fn begin(&mut self, step: &str, bytes: u64) {
        self.end();
        if !self.is_terminal {
            eprintln!("longma: {step}");
            return;
        }
        let (bar, style) = match bytes {
            0 => (ProgressBar::new_spinner(), "{spinner} {msg}"),
            _ => (ProgressBar::new(bytes), "{bar:24} {bytes}/{total_bytes} {eta} {msg}"),
        };
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_message(step.to_owned());
        bar.tick();
        self.bar = Some(bar);
    }

    fn reach(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }

    fn note(&mut self, text: &str) {
        self.end();
        eprintln!("longma: {text}");
    }
}
