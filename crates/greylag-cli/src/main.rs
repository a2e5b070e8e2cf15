//! `greylag`: looks at a running cluster and, where its nodes allow it, changes it.
//!
//! Every command but `journal` and `shards remove-internal-data` calls the admin service of one node
//! (`greylag-management`), so what it prints is that node's view. Those two open stores of events themselves and call
//! no node; the features of the program decide which kinds of stores are built in. The shapes of `--json` and the exit
//! codes are promises, described in `docs/cli.md`.

mod arguments;
mod call;
mod delivery;
mod failure;
mod journal;
mod json;
mod output;
mod run;
mod shards;
mod table;
mod wait;

use std::process::ExitCode;

use clap::Parser as _;

use crate::arguments::{Cli, Command, Journal};
use crate::failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Only `journal serve` works for many callers at a time; one thread is enough for every other command.
    let mut runtime = match cli.command {
        Command::Journal(Journal::Serve(_)) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let done = match runtime.enable_all().build() {
        Ok(runtime) => runtime.block_on(run::run(cli)),
        Err(error) => Err(Failure::Refused(format!("the tokio runtime did not start: {error}"))),
    };
    done.unwrap_or_else(Failure::report)
}
