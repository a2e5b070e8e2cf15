//! `greylag journal`: inspects stores of events, verifies that they are whole or equal, moves them, and serves one.
//!
//! The kinds of stores are chosen when the program is built: a build for members and shards alone has neither sled nor
//! PostgreSQL. A command that needs a kind that is not built in names the feature to build with.

#[cfg(feature = "stores")]
mod record;
#[cfg(feature = "stores")]
mod removal;
#[cfg(feature = "journal-sled")]
mod serve;
#[cfg(feature = "stores")]
mod store;
#[cfg(feature = "stores")]
mod stores;
mod url;

use std::process::ExitCode;
use std::time::Duration;

use crate::arguments::{Journal, RemoveInternalData, Tls};
use crate::failure::Failure;
#[cfg(not(feature = "journal-sled"))]
use crate::failure::Feature;

/// Runs the command. Without a limit it may take any time.
#[cfg_attr(not(feature = "journal-sled"), allow(unused_variables, reason = "what serves a journal is not built"))]
pub(crate) async fn run(command: Journal, tls: &Tls, json: bool, limit: Option<Duration>) -> Result<ExitCode, Failure> {
    match command {
        // `serve` runs until a signal ends it, and `health` applies the limit itself.
        #[cfg(feature = "journal-sled")]
        Journal::Serve(serve) => serve::serve(&serve, tls, json).await,
        #[cfg(feature = "journal-sled")]
        Journal::Health(asked) => serve::health(&asked, tls, json, limit).await,
        #[cfg(feature = "stores")]
        Journal::Inspect(inspect) => stores::with_timeout(limit, stores::inspect(inspect, json)).await,
        #[cfg(feature = "stores")]
        Journal::Replay(replay) => stores::with_timeout(limit, stores::replay(replay, json)).await,
        #[cfg(feature = "stores")]
        Journal::Verify(verify) => stores::with_timeout(limit, stores::verify(verify, json)).await,
        #[cfg(feature = "stores")]
        Journal::Copy(copy) => stores::with_timeout(limit, stores::copy(copy, json)).await,
        #[cfg(not(feature = "journal-sled"))]
        other => Err(unsupported(&other)),
    }
}

/// `shards remove-internal-data`, which is run here because coordinators keep their data as events in a store.
pub(crate) async fn remove_internal_data(
    remove: RemoveInternalData,
    json: bool,
    limit: Option<Duration>,
) -> Result<ExitCode, Failure> {
    #[cfg(feature = "stores")]
    return stores::with_timeout(limit, removal::run(remove, json)).await;
    #[cfg(not(feature = "stores"))]
    {
        let _not_built = (json, limit);
        Err(url::Url::parse(&remove.store).map_or_else(|wrong| wrong, |url| url.feature().missing()))
    }
}

/// The error of a command that this program cannot do: the missing feature, or an invalid store.
#[cfg(not(feature = "journal-sled"))]
fn unsupported(command: &Journal) -> Failure {
    let store = match command {
        Journal::Serve(_) | Journal::Health(_) => return Feature::JournalSled.missing(),
        Journal::Inspect(inspect) => &inspect.store,
        Journal::Replay(replay) => &replay.store,
        Journal::Verify(verify) => &verify.first,
        Journal::Copy(copy) => &copy.from,
    };
    url::Url::parse(store).map_or_else(|wrong| wrong, |url| url.feature().missing())
}
