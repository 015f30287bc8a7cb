//! A progress bar on standard error, or plain lines where that is no terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The progress of one transfer.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Begins at `have` of `total` bytes; on what is no terminal, with a line.
    pub fn start(name: &str, have: u64, total: Option<u64>) -> Self {
        if !std::io::stderr().is_terminal() {
            let of = total.map_or(String::new(), |t| format!(" ({})", size(t)));
            let from = if have > 0 { format!(", from {}", size(have)) } else { String::new() };
            crate::note!("Fetching {name}{of}{from}");
        }
        Self::bar(name, have, total)
    }

    /// The bar alone.
    pub fn bar(name: &str, have: u64, total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let template = match total {
            Some(_) => "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            None => "{msg} {bytes} {binary_bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(name.to_string());
        bar.set_position(have);
        // The speed is that of this run, not of what was there before.
        bar.reset_eta();
        Self { bar }
    }

    /// `have` bytes are there now.
    pub fn at(&self, have: u64) {
        self.bar.set_position(have);
    }

    /// A line that stays above the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| crate::note!("{line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A size as people read it.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
