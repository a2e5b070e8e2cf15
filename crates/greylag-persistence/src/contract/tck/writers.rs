//! Two writers of one id in every interleaving: tests the fence as a whole, not rule by rule.
//!
//! Each case gives both writers a short script of claims, appends, lost answers, late duplicates, deletes and
//! snapshots, and plays every order of their steps, each on a fresh id. After every step
//! the answer must be that of a model of the contract; in the end head, events and snapshots must be the
//! model's, and another writer must be able to write. Both kinds of claims are played: under generations (either
//! owner the newer one, or both the same) and under the epochs that the writers read.
//!
//! Source: persistence J3, J4, J9, J10; scenarios 63, 65, 68, 69.

mod model;
mod play;
mod script;
mod stores;

use futures::future::join_all;

use self::play::Play;
use self::script::{Right, Script, Step, orders};
use self::stores::Stores;
use super::factories::{JournalFactory, SnapshotFactory};
use super::harness::{Checked, Flags, Report, cases};

/// Number of interleavings that run at once, so that backends which commit in groups have groups.
const AT_ONCE: usize = 32;

/// Runs every case against a fresh journal and a fresh snapshot store. Of each case's interleavings
/// at most [`Flags::interleavings`] are played, evenly spread.
pub async fn writers(journals: &impl JournalFactory, snapshots: &impl SnapshotFactory, flags: Flags) -> Report {
    use Step::{
        Append, Claim, ClaimAgain, ClaimUnheard, Delete, DeleteAll, Deliver, Look, Post, Restart, Retry, Snapshot,
        Unheard,
    };
    let stores = &Stores { journal: journals.open().await, snapshots: snapshots.open().await };
    let (limit, mut report) = (flags.interleavings, Report::default());
    let all = |case, one: &[Step], other: &[Step]| all_orders(stores, case, one.to_vec(), other.to_vec(), limit);
    cases! {report, &flags;
        "01 claims and appends" => all("claims", &[Look, Claim, Append, Append], &[Look, Claim, Append, Append]);
        "02 lost answers" => all(
            "lost", &[Look, Claim, Unheard, Retry, Append], &[Look, Claim, Append, Retry, Append]);
        "03 copies that come late, and a restart" => all(
            "late", &[Look, Claim, Post, Restart, Look, Claim, Append, Deliver], &[Look, Claim, Append]);
        "04 claims that come twice" => all(
            "twice", &[Look, ClaimUnheard, ClaimAgain, Append, Append], &[Look, Claim, Append, ClaimAgain, Append]);
        "05 deletes" => all(
            "deletes", &[Look, Claim, Append, DeleteAll, Append], &[Look, Claim, Append, DeleteAll, Retry]);
        "06 snapshots" => all(
            "snapshots",
            &[Look, Claim, Append, Snapshot, Delete, Append],
            &[Look, Claim, Append, Snapshot, Delete]);
    }
    report
}

async fn all_orders(stores: &Stores, case: &str, one: Script, other: Script, limit: usize) -> Checked {
    let rights = [
        [Right::Generation(1), Right::Generation(2)],
        [Right::Generation(2), Right::Generation(1)],
        [Right::Generation(1), Right::Generation(1)],
        [Right::Seen, Right::Seen],
    ];
    let mut plays = Vec::new();
    for (number, rights) in rights.into_iter().enumerate() {
        let scripts = [script::under(&one, rights[0]), script::under(&other, rights[1])];
        let orders = orders(scripts[0].len(), scripts[1].len());
        for (order_number, order) in orders.into_iter().enumerate() {
            plays.push((format!("{case}-{number}-{order_number}"), rights, scripts.clone(), order));
        }
    }
    let count = plays.len();
    // Choose evenly spread plays, so that each kind of claim has its share.
    let is_chosen = |at: usize| count <= limit || (at * limit) / count != ((at + 1) * limit) / count;
    let chosen: Vec<_> = plays.into_iter().enumerate().filter(|(at, _)| is_chosen(*at)).map(|(_, play)| play).collect();
    for some in chosen.chunks(AT_ONCE) {
        let plays =
            some.iter().map(|(name, rights, scripts, order)| Play::new(stores, name, *rights).run(scripts, order));
        join_all(plays).await.into_iter().collect::<Checked<Vec<()>>>()?;
    }
    Ok(())
}
