//! Logs on standard error: one line an event, as text or as JSON. What prompts and answers say is in
//! none, and no key.

use tracing_subscriber::{
    Layer as _, filter::LevelFilter, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// Which events are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// None.
    Off,
    /// Failures.
    Error,
    /// What an operator should look at.
    Warn,
    /// Each request.
    Info,
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// Starts telling.
pub fn start(level: Level, format: Format) {
    let level = match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
    };
    let layer = fmt::layer().with_writer(std::io::stderr);
    let layer = match format {
        Format::Text => layer.with_ansi(false).boxed(),
        Format::Json => layer.json().flatten_event(true).boxed(),
    };
    // There is one already in tests that serve twice.
    let _ = tracing_subscriber::registry().with(layer.with_filter(level)).try_init();
}
