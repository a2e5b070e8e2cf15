//! `greylag`: looks at a running cluster and, where its nodes allow it, changes it.
//!
//! Every command but `journal` and `shards remove-internal-data` calls the admin service of one node
//! (`greylag-management`), so what it prints is that node's view. Those two open stores of events by themselves, and ask no
//! node; which stores are built in is said by the features of the program. Shapes of `--json` and exit codes are promises; `docs/cli.md` writes them down.

mod arguments;
mod call;
mod delivery;
mod failure;
mod journal;
mod json;
mod shards;
mod table;
mod wait;

use std::process::ExitCode;

use clap::Parser as _;

use crate::arguments::{Cli, Command, Journal};
use crate::failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Only `journal serve` works for many callers at a time; every other command needs one thread.
    let mut runtime = match cli.command {
        Command::Journal(Journal::Serve(_)) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let done = match runtime.enable_all().build() {
        Ok(runtime) => runtime.block_on(call::run(cli)),
        Err(error) => Err(Failure::Refused(format!("the program cannot run: {error}"))),
    };
    done.unwrap_or_else(Failure::report)
}
