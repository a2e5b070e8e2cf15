//! Output of a command.

use std::io::Write as _;

use serde::Serialize;

use crate::failure::Failure;

/// Prints one line of JSON, or text for people.
pub(crate) fn print(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
    let mut line = if json {
        serde_json::to_string(value).map_err(|error| Failure::Refused(format!("cannot write JSON: {error}")))?
    } else {
        text()
    };
    if !line.ends_with('\n') {
        line.push('\n');
    }
    let mut output = std::io::stdout().lock();
    output.write_all(line.as_bytes()).and_then(|()| output.flush()).map_err(|_| Failure::OutputClosed)
}
