//! Ctrl-C: the first stops what is being generated, the next (or one while nothing is) the program.

use std::sync::{Mutex, PoisonError};

use dunlin_engine::CancelFlag;

use crate::outcome::INTERRUPTED;

/// What the next Ctrl-C stops.
static ARMED: Mutex<Option<CancelFlag>> = Mutex::new(None);

/// Starts to listen. Where the system does not let us, Ctrl-C ends the program as it does by
/// default.
pub fn listen() {
    let _ = ctrlc::set_handler(|| {
        let armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match armed {
            Some(flag) if !flag.is_cancelled() => flag.cancel(),
            _ => std::process::exit(i32::from(INTERRUPTED)),
        }
    });
}

/// Lets the next Ctrl-C raise `flag`; `None` lets it end the program.
pub fn arm(flag: Option<&CancelFlag>) {
    *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = flag.cloned();
}
