//! Inspects stores of events, verifies that they are whole or equal, and moves them.
//!
//! The stores are opened by this process, with the same code that a node uses, so it finds what a node would find.
//! `inspect` and `replay` share a database with its users; `verify` and `copy` need the stores alone, and a directory
//! of sled can only be open in one process.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use greylag_persistence::copy::{self as transfer, Copied, CopyError, Counts, Verified};
use greylag_persistence::{PersistenceId, ReadError, ReadRange, SeqNr, SnapshotCriteria, SnapshotError};
use serde::Serialize;

use super::record::{EventView, HeadView, SnapshotView, StateView};
use super::store::{Access, OpenStore};
use super::url::Url;
use crate::arguments::{Copy, Inspect, Replay, Verify};
use crate::failure::{Failure, UNHEALTHY};
use crate::output::print;

/// Ids of one page.
pub(super) const IDS_PER_PAGE: usize = 1000;

/// Payload bytes of the first and the last event, as `inspect` shows them.
const SHOWN_BYTES: usize = 1024;

/// Runs `work` within the limit, if there is one.
pub(super) async fn with_timeout(
    limit: Option<Duration>,
    work: impl Future<Output = Result<ExitCode, Failure>>,
) -> Result<ExitCode, Failure> {
    let Some(limit) = limit else { return work.await };
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        Err(Failure::TimedOut(format!(
            "journal did not finish within {limit:?}; a copy keeps what it has copied, and the next run continues there"
        )))
    })
}

fn parse_id(text: &str) -> Result<PersistenceId, Failure> {
    PersistenceId::unique(text).map_err(|error| Failure::Usage(format!("{text:?} is not a persistence id: {error}")))
}

pub(super) fn read_failure(store: &OpenStore, error: ReadError) -> Failure {
    match error {
        ReadError::Corrupt(corrupt) => Failure::Refused(format!(
            "{}: {corrupt}; `greylag journal verify` tells what else is damaged",
            store.name()
        )),
        ReadError::Unavailable(cause) => Failure::Unreachable(format!("{}: {cause}", store.name())),
    }
}

/// `journal inspect` without an id.
#[derive(Debug, Default, Serialize)]
struct Totals {
    store: String,
    health: String,
    ids: u64,
    events: u64,
    deleted_events: u64,
    states: u64,
    listed: Vec<Listed>,
}

/// One id listed by `--ids`.
#[derive(Debug, Serialize)]
struct Listed {
    id: String,
    highest: u64,
    deleted_to: u64,
}

/// `journal inspect`.
pub(super) async fn inspect(inspect: Inspect, json: bool) -> Result<ExitCode, Failure> {
    let id = inspect.id.as_deref().map(parse_id).transpose()?;
    let after = inspect.after.as_deref().map(parse_id).transpose()?;
    let store = OpenStore::open(Url::parse(&inspect.store)?, Access::Shared).await?;
    let done = match id {
        Some(id) => inspect_id(&store, &id, json).await,
        None => inspect_all(&store, inspect.ids, after, json).await,
    };
    store.close(done.map(|()| ExitCode::SUCCESS)).await
}

async fn inspect_all(
    store: &OpenStore,
    list: usize,
    list_after: Option<PersistenceId>,
    json: bool,
) -> Result<(), Failure> {
    let archive = store.archive();
    let journal = archive.stores().journal;
    let mut totals = Totals { store: store.name(), health: journal.health().to_string(), ..Totals::default() };
    let mut after = None;
    loop {
        let ids = archive.ids(after.as_ref(), IDS_PER_PAGE).await.map_err(|error| read_failure(store, error))?;
        for id in &ids {
            let head = journal.head(id).await.map_err(|error| read_failure(store, error))?;
            let (highest, deleted_to) = (head.highest.as_u64(), head.deleted_to.as_u64());
            totals.ids += 1;
            totals.events += highest - deleted_to;
            totals.deleted_events += deleted_to;
            if totals.listed.len() < list && list_after.as_ref().is_none_or(|after| id > after) {
                totals.listed.push(Listed { id: id.to_string(), highest, deleted_to });
            }
        }
        match ids.into_iter().nth(IDS_PER_PAGE - 1) {
            Some(last) => after = Some(last),
            None => break,
        }
    }
    totals.states = count_states(store).await?;
    print(json, &totals, || {
        let Totals { store, health, ids, events, deleted_events, states, listed } = &totals;
        let mut text = format!(
            "{store}: {health}\n{ids} ids, {events} events ({deleted_events} deleted), {states} durable states\n"
        );
        for Listed { id, highest, deleted_to } in listed {
            let _infallible = writeln!(text, "{id}  events {} to {highest}", deleted_to + 1);
        }
        text
    })
}

async fn count_states(store: &OpenStore) -> Result<u64, Failure> {
    let Some(states) = store.archive().stores().states else { return Ok(0) };
    let (mut count, mut after) = (0, None);
    loop {
        let ids = states.ids(after.as_ref(), IDS_PER_PAGE).await.map_err(|error| read_failure(store, error))?;
        count += ids.len() as u64;
        match ids.into_iter().nth(IDS_PER_PAGE - 1) {
            Some(last) => after = Some(last),
            None => return Ok(count),
        }
    }
}

/// `journal inspect` of one id.
#[derive(Debug, Serialize)]
struct Inspected {
    id: String,
    head: HeadView,
    first: Option<EventView>,
    last: Option<EventView>,
    snapshots: Vec<SnapshotView>,
    state: Option<StateView>,
}

async fn inspect_id(store: &OpenStore, id: &PersistenceId, json: bool) -> Result<(), Failure> {
    let archive = store.archive();
    let stores = archive.stores();
    let head = stores.journal.head(id).await.map_err(|error| read_failure(store, error))?;
    let last_append = archive.last_append(id).await.map_err(|error| read_failure(store, error))?;
    let event = async |from: SeqNr, to: SeqNr| {
        let page = stores.journal.read(id, ReadRange { max_events: 1, ..ReadRange::new(from, to) }).await;
        let page = page.map_err(|error| read_failure(store, error))?;
        Ok::<_, Failure>(page.records.first().map(|event| EventView::new(event, SHOWN_BYTES)))
    };
    let first = event(SeqNr::FIRST, SeqNr::MAX).await?;
    let last = event(head.highest.max(SeqNr::FIRST), head.highest).await?;
    let mut snapshots = Vec::new();
    let mut upper = Some(SeqNr::MAX);
    while let Some(up_to) = upper {
        let found = stores.snapshots.load(id, SnapshotCriteria::up_to(up_to)).await;
        let found = found.map_err(|error| match error {
            SnapshotError::Corrupt(corrupt) => read_failure(store, ReadError::Corrupt(corrupt)),
            other => Failure::Unreachable(format!("{}: {other}", store.name())),
        })?;
        upper = found.as_ref().map(|snapshot| snapshot.seq_nr).filter(|at| !at.is_zero()).map(SeqNr::previous);
        snapshots.extend(found.as_ref().map(SnapshotView::from));
    }
    let state = match &stores.states {
        Some(states) => Some(states.get(id).await.map_err(|error| read_failure(store, error))?),
        None => None,
    };
    let state = state.filter(|state| !state.revision.is_none()).map(|state| StateView::new(&state, SHOWN_BYTES));
    let head = HeadView::new(&head, last_append);
    if head.is_none() && snapshots.is_empty() && state.is_none() {
        return Err(nothing_stored(store, id));
    }
    let inspected = Inspected { id: id.to_string(), head, first, last, snapshots, state };
    print(json, &inspected, || {
        let Inspected { id, head, first, last, snapshots, state } = &inspected;
        let mut text = format!("{id}\n{head}");
        for (name, event) in [("first", first), ("last", last)] {
            if let Some(event) = event {
                let _infallible = writeln!(text, "{name:<9} {event}");
            }
        }
        for snapshot in snapshots {
            let _infallible = writeln!(text, "snapshot  {snapshot}");
        }
        if let Some(state) = state {
            let _infallible = writeln!(text, "state     {state}");
        }
        text
    })
}

fn nothing_stored(store: &OpenStore, id: &PersistenceId) -> Failure {
    let name = store.name();
    Failure::Refused(format!("{name} holds nothing of {id}; `greylag journal inspect URL --ids 20` lists ids"))
}

/// `journal replay`.
pub(super) async fn replay(replay: Replay, json: bool) -> Result<ExitCode, Failure> {
    let id = parse_id(&replay.id)?;
    let store = OpenStore::open(Url::parse(&replay.store)?, Access::Shared).await?;
    let done = print_events(&store, &id, &replay, json).await;
    store.close(done.map(|()| ExitCode::SUCCESS)).await
}

async fn print_events(store: &OpenStore, id: &PersistenceId, replay: &Replay, json: bool) -> Result<(), Failure> {
    let journal = store.archive().stores().journal;
    let to = replay.to.map_or(SeqNr::MAX, SeqNr::saturating);
    let mut from = Some(SeqNr::saturating(replay.from));
    if journal.head(id).await.map_err(|error| read_failure(store, error))?.highest.is_zero() {
        return Err(nothing_stored(store, id));
    }
    while let Some(next) = from {
        let page = journal.read(id, ReadRange::new(next, to)).await.map_err(|error| read_failure(store, error))?;
        for event in &page.records {
            let view = EventView::new(event, replay.payload_bytes);
            print(json, &view, || view.to_string())?;
        }
        from = page.next;
    }
    Ok(())
}

/// Counts of a store, as JSON.
#[derive(Debug, Serialize)]
struct CountsView {
    ids: u64,
    events: u64,
    snapshots: u64,
    states: u64,
}

impl From<Counts> for CountsView {
    fn from(Counts { ids, events, snapshots, states }: Counts) -> Self {
        Self { ids, events, snapshots, states }
    }
}

impl std::fmt::Display for CountsView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { ids, events, snapshots, states } = self;
        write!(f, "{ids} ids, {events} events, {snapshots} snapshots, {states} durable states")
    }
}

/// `journal verify`.
#[derive(Debug, Serialize)]
struct VerifiedView {
    first: String,
    second: Option<String>,
    equal: Option<bool>,
    intact: bool,
    counts: CountsView,
    differences: Vec<DifferenceView>,
    cut: bool,
}

/// One difference.
#[derive(Debug, Serialize)]
struct DifferenceView {
    id: String,
    place: String,
    what: String,
}

/// `journal verify`.
pub(super) async fn verify(verify: Verify, json: bool) -> Result<ExitCode, Failure> {
    let limit = usize::try_from(verify.differences).unwrap_or(usize::MAX);
    let first = Url::parse(&verify.first)?.if_built()?;
    let second = verify.second.as_deref().map(|url| Url::parse(url)?.if_built()).transpose()?;
    let first = OpenStore::open(first, Access::Alone).await?;
    let Some(second) = second else {
        let found = transfer::check(first.archive(), limit).await.map_err(|error| copy_failure(&error));
        let done = found.and_then(|found| print_verified(&first, None, &found, json));
        return first.close(done).await;
    };
    let second = match OpenStore::open(second, Access::Alone).await {
        Ok(second) => second,
        Err(failure) => return first.close(Err(failure)).await,
    };
    let found = transfer::verify(first.archive(), second.archive(), limit).await.map_err(|error| copy_failure(&error));
    let done = found.and_then(|found| print_verified(&first, Some(&second), &found, json));
    let done = second.close(done).await;
    first.close(done).await
}

fn print_verified(
    first: &OpenStore,
    second: Option<&OpenStore>,
    found: &Verified,
    json: bool,
) -> Result<ExitCode, Failure> {
    let differences = found.differences.iter().map(|difference| DifferenceView {
        id: difference.id.to_string(),
        place: difference.place.to_string(),
        what: difference.to_string(),
    });
    let view = VerifiedView {
        first: first.name(),
        second: second.map(OpenStore::name),
        equal: second.map(|_| found.is_equal()),
        intact: !found.differences.iter().any(transfer::Difference::is_damage),
        counts: found.counts.into(),
        differences: differences.collect(),
        cut: found.is_cut,
    };
    print(json, &view, || {
        let VerifiedView { first, second, counts, differences, cut, .. } = &view;
        let names = second.as_ref().map_or_else(|| first.clone(), |second| format!("{first} and {second}"));
        let verdict = match (differences.len(), second) {
            (0, None) => "whole".to_owned(),
            (0, Some(_)) => "equal".to_owned(),
            (count, _) => format!("{}{count} differences or damages", if *cut { "at least " } else { "" }),
        };
        let mut text = format!("{names}: {verdict}; {counts}\n");
        differences.iter().for_each(|difference| {
            let _infallible = writeln!(text, "{}", difference.what);
        });
        text
    })?;
    Ok(if found.is_equal() { ExitCode::SUCCESS } else { ExitCode::from(UNHEALTHY) })
}

/// `journal copy`.
#[derive(Debug, Serialize)]
struct CopiedView {
    from: String,
    to: String,
    written: CountsView,
    equal_ids: u64,
}

/// `journal copy`.
pub(super) async fn copy(copy: Copy, json: bool) -> Result<ExitCode, Failure> {
    let (from, to) = (Url::parse(&copy.from)?.if_built()?, Url::parse(&copy.to)?.if_built()?);
    let from = OpenStore::open(from, Access::Alone).await?;
    let to = match OpenStore::open(to, Access::AloneOrNew).await {
        Ok(to) => to,
        Err(failure) => return from.close(Err(failure)).await,
    };
    let copied = transfer::copy(from.archive(), to.archive()).await.map_err(|error| copy_failure(&error));
    let done = copied.and_then(|Copied { written, equal_ids }| {
        let view = CopiedView { from: from.name(), to: to.name(), written: written.into(), equal_ids };
        print(json, &view, || {
            let CopiedView { from, to, written, equal_ids } = &view;
            format!("{to} holds everything of {from}: {written} written, {equal_ids} ids were there already")
        })
    });
    let done = to.close(done.map(|()| ExitCode::SUCCESS)).await;
    from.close(done).await
}

fn copy_failure(error: &CopyError) -> Failure {
    match error {
        CopyError::Unreadable { .. } => Failure::Unreachable(error.to_string()),
        _ => Failure::Refused(error.to_string()),
    }
}
