//! `greylag`: looks at a running cluster and, where its nodes allow it, changes it.
//!
//! Every command but `journal` calls the admin service of one node (`greylag-management`), so what it prints
//! is that node's view. `journal` opens stores of events by itself, and asks no node. Shapes of `--json` and exit codes are promises; `docs/cli.md` writes them down.

mod arguments;
mod call;
mod failure;
mod journal;
mod json;
mod table;
mod wait;

use std::process::ExitCode;

use clap::Parser as _;

use crate::arguments::Cli;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match call::run(cli).await {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
