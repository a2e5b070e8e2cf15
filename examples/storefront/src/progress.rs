//! The display of the progress: a bar, or plain lines if there is no terminal.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use greylag::core::UniqueAddress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::report::thousands;

/// The progress display.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    /// The tenth of the sale that the last plain line reported.
    said: Option<u64>,
}

impl Progress {
    /// A display for `total` purchases; `plain` asks for lines of text.
    pub(crate) fn new(total: u64, plain: bool) -> Self {
        let bar = (!plain && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:30} {human_pos}/{human_len} {elapsed} {msg}");
            let bar = ProgressBar::new(total).with_style(style.expect("a fixed template"));
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self { bar, total, said: None }
    }

    /// Shows the count of confirmed purchases, and the count of shards per node.
    pub(crate) fn show(&mut self, confirmed: u64, homes: &BTreeMap<UniqueAddress, usize>) {
        let spread: Vec<_> = homes.iter().map(|(node, shards)| format!("{}:{shards}", node.address().port())).collect();
        let spread = format!("shards by node {}", spread.join(" "));
        match &self.bar {
            Some(bar) => {
                bar.set_position(confirmed);
                bar.set_message(spread);
            }
            None => {
                let tenth = confirmed * 10 / self.total.max(1);
                if self.said.replace(tenth) != Some(tenth) {
                    say(&format!("{:>3} %  {:>7} confirmed  {spread}", tenth * 10, thousands(confirmed)));
                }
            }
        }
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => say(line),
        }
    }

    /// Removes the bar.
    pub(crate) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Prints one line.
pub(crate) fn say(line: &str) {
    // Ignore errors, since the reader may close the pipe; the exit code still tells the result.
    let _ = writeln!(std::io::stdout(), "{line}");
}
