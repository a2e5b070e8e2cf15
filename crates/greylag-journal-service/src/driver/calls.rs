//! Carries out each call on the server: decode, ask the store, encode. The stores decide everything.

use greylag_persistence::{
    AppendError, Appended, Claim, EventPage, EventQueries, Journal, OffsetStore, PageQuery, PersistenceId, Processed,
    QueryError, ReadError, RejectReason, SeqNr, StateRejectReason, StateStore, StateWriteError, StoreFailure,
    StoredEvent, WriterEpoch,
};
use prost::Message;

use crate::generated::{self as proto, answer::Answer, call::Call};
use crate::served::Served;
use crate::settings::{MAX_FRAME_BYTES, MAX_IDS, MAX_PAGE_BYTES, PAGE_STEP};
use crate::wire;

type Done = wire::Decoded<Answer>;

/// Bytes that the answer to a call may take while it waits to be sent, so that calls are begun no faster than the
/// memory for one client allows. Source: persistence §4.4a.
pub(super) fn reserve(call: &proto::Call, served: &Served) -> usize {
    match &call.call {
        Some(Call::Read(read)) => wire::usize_of(read.max_bytes).min(MAX_PAGE_BYTES),
        Some(Call::FindEvents(find)) if find.load => MAX_PAGE_BYTES,
        Some(Call::ReadChanges(_) | Call::LoadOffsets(_)) => MAX_PAGE_BYTES,
        Some(Call::GetState(_)) => served.stores.states.as_ref().map_or(0, |states| states.caps().max_state_bytes),
        Some(Call::ListIds(_) | Call::ListStates(_)) => MAX_IDS * 64,
        _ => 0,
    }
}

pub(super) async fn run(served: Served, call: proto::Call) -> proto::Answer {
    let answer = match call.call {
        Some(call) => dispatch(&served, call).await,
        None => rejected("this server does not know the call; upgrade the server first"),
    };
    proto::Answer { request_id: call.request_id, answer: Some(limit_size(answer)) }
}

async fn dispatch(served: &Served, call: Call) -> Answer {
    let journal = &*served.stores.journal;
    let done = match call {
        Call::Append(append) => run_append(journal, append).await,
        Call::Claim(claim) => run_claim(journal, claim).await,
        Call::Advance(advance) => run_advance(journal, advance).await,
        Call::Read(read) => run_read(served, read).await,
        Call::Head(read) => run_head(journal, read).await,
        Call::DeleteTo(delete) => run_delete(journal, delete).await,
        Call::GetState(_) | Call::WriteState(_) | Call::ListStates(_) | Call::ReadChanges(_) => {
            run_states(served.stores.states.as_deref(), call).await
        }
        Call::ClaimSlices(_)
        | Call::LoadOffsets(_)
        | Call::SaveOffsets(_)
        | Call::ForgetOffsets(_)
        | Call::ResetOffsets(_) => run_offsets(served.offsets.as_deref(), call).await,
        Call::ListIds(proto::ListIds { changes, .. })
        | Call::FindNewest(proto::FindNewest { changes })
        | Call::FindEvents(proto::FindEvents { changes, .. }) => run_queries(served.query_side(changes), call).await,
    };
    done.unwrap_or_else(|malformed| rejected(&malformed.to_string()))
}

/// Replaces an answer that is too large by an error: a frame that the client cannot read would end the session, and the
/// call would be sent again.
fn limit_size(answer: Answer) -> Answer {
    let (bytes, max) = (answer.encoded_len(), MAX_FRAME_BYTES - 1024);
    if bytes <= max {
        answer
    } else {
        unavailable(&format!("the answer has {bytes} bytes, more than the {max} that a frame can hold"))
    }
}

/// The answer to an invalid call: nothing of it was done, and repeating it will not help.
fn rejected(why: &str) -> Answer {
    Answer::Failure(wire::from_append_error(AppendError::Rejected(RejectReason::Other(why.to_owned()))))
}

fn unavailable(why: &str) -> Answer {
    Answer::Failure(wire::from_read_error(ReadError::Unavailable(StoreFailure::new("journal service", why))))
}

fn answer_of<T, E>(
    done: Result<T, E>,
    answer: impl FnOnce(T) -> Answer,
    failure: impl FnOnce(E) -> proto::Failure,
) -> Answer {
    done.map_or_else(|error| Answer::Failure(failure(error)), answer)
}

fn done_answer((): ()) -> Answer {
    Answer::Done(proto::Done {})
}

async fn run_append(journal: &dyn Journal, append: proto::Append) -> Done {
    let done = journal.append(wire::append(append)?).await;
    let appended = |appended: Appended| proto::Appended { timestamp: appended.timestamp.as_micros() };
    Ok(answer_of(done, |done| Answer::Appended(appended(done)), wire::from_append_error))
}

async fn run_claim(journal: &dyn Journal, claim: proto::Claim) -> Done {
    let (id, uuid) = (wire::id(&claim.persistence_id)?, wire::writer_uuid(&claim.writer_uuid)?);
    let done = journal.claim(&id, uuid, wire::under(claim.under)?).await;
    let claimed = |claim: Claim| proto::Claimed {
        epoch: claim.epoch.as_u64(),
        highest: claim.highest.as_u64(),
        deleted_to: claim.deleted_to.as_u64(),
    };
    Ok(answer_of(done, |done| Answer::Claimed(claimed(done)), wire::from_claim_error))
}

async fn run_advance(journal: &dyn Journal, advance: proto::Advance) -> Done {
    let (id, to) = (wire::id(&advance.persistence_id)?, wire::seq_nr(advance.to)?);
    let done = journal.advance(&id, WriterEpoch::from_u64(advance.epoch), to).await;
    Ok(answer_of(done, done_answer, wire::from_advance_error))
}

async fn run_read(served: &Served, read: proto::Read) -> Done {
    let (id, mut range) = (wire::id(&read.persistence_id)?, wire::read_range(&read)?);
    range.max_bytes = range.max_bytes.min(MAX_PAGE_BYTES);
    let done = match served.query_side(read.changes).filter(|_| read.query) {
        Some(queries) => queries.read(&id, range).await,
        None if read.changes => return Ok(unavailable(NO_QUERIES)),
        None => served.stores.journal.read(&id, range).await,
    };
    Ok(answer_of(done, |page| Answer::Page(wire::from_page(page)), wire::from_read_error))
}

async fn run_head(journal: &dyn Journal, read: proto::ReadHead) -> Done {
    let done = journal.head(&wire::id(&read.persistence_id)?).await;
    Ok(answer_of(done, |head| Answer::Head(wire::from_head(head)), wire::from_read_error))
}

async fn run_delete(journal: &dyn Journal, delete: proto::DeleteTo) -> Done {
    let (id, to) = (wire::id(&delete.persistence_id)?, wire::seq_nr(delete.to)?);
    let done = journal.delete_to(&id, WriterEpoch::from_u64(delete.epoch), to).await;
    let deleted = |to: SeqNr| proto::Deleted { deleted_to: to.as_u64() };
    Ok(answer_of(done, |done| Answer::Deleted(deleted(done)), wire::from_delete_error))
}

// ---- Durable states -----------------------------------------------------------------------------

async fn run_states(states: Option<&dyn StateStore>, call: Call) -> Done {
    const NONE: &str = "this server does not serve durable states";
    let Some(states) = states else {
        let refused = StateWriteError::Rejected(StateRejectReason::Other(NONE.to_owned()));
        let writes = matches!(call, Call::WriteState(_));
        return Ok(if writes { Answer::Failure(wire::from_write_error(refused)) } else { unavailable(NONE) });
    };
    match call {
        Call::GetState(get) => {
            let done = states.get(&wire::id(&get.persistence_id)?).await;
            Ok(answer_of(done, |state| Answer::State(wire::from_state(state)), wire::from_read_error))
        }
        Call::WriteState(message) => {
            let done = match wire::write(message)? {
                (write, Some((value, tag))) => states.upsert(write, value, tag).await,
                (write, None) => states.delete(write).await,
            };
            Ok(answer_of(done, done_answer, wire::from_write_error))
        }
        Call::ListStates(list) => {
            let after = list.after.map(|id| wire::id(&id)).transpose()?;
            let done = states.ids(after.as_ref(), wire::usize_of(list.limit).min(MAX_IDS)).await;
            Ok(answer_of(done, ids, wire::from_read_error))
        }
        Call::ReadChanges(read) => read_changes(states, read).await,
        _ => Err(wire::Malformed("call of states")),
    }
}

fn ids(ids: Vec<PersistenceId>) -> Answer {
    Answer::Ids(proto::Ids { ids: ids.iter().map(|id| id.as_str().to_owned()).collect() })
}

/// As many changes as fit into a page, gathered in steps.
async fn read_changes(states: &dyn StateStore, read: proto::ReadChanges) -> Done {
    let (of, mut offset, limit) = (wire::changes_of(read.of)?, wire::offset(read.offset)?, wire::usize_of(read.limit));
    let mut page = proto::Changes { changes: Vec::new(), more: true };
    let mut bytes = 0;
    while page.more && page.changes.len() < limit && bytes < MAX_PAGE_BYTES {
        let step = PAGE_STEP.min(limit - page.changes.len());
        let found = match states.changes(&of, &offset, step).await {
            Ok(found) => found,
            Err(error) if page.changes.is_empty() => return Ok(Answer::Failure(wire::from_query_error(error))),
            // The next page begins with the error.
            Err(_) => break,
        };
        page.more = found.len() == step;
        for change in found {
            if bytes >= MAX_PAGE_BYTES {
                page.more = true;
                break;
            }
            offset = change.offset.clone();
            let change = wire::from_change(change);
            bytes += change.encoded_len();
            page.changes.push(change);
        }
    }
    Ok(Answer::Changes(page))
}

// ---- Offsets of projections ---------------------------------------------------------------------

async fn run_offsets(offsets: Option<&dyn OffsetStore>, call: Call) -> Done {
    let Some(offsets) = offsets else { return Ok(unavailable("this server does not serve offsets")) };
    match call {
        Call::ClaimSlices(claim) => {
            let slices = wire::slices(claim.first, claim.last)?;
            let done = offsets.claim(&claim.projection, slices).await;
            Ok(answer_of(done, |owned| Answer::Owned(wire::from_owned(&owned)), wire::from_offset_error))
        }
        Call::LoadOffsets(load) => load_offsets(offsets, load).await,
        Call::SaveOffsets(save) => {
            let owned = wire::owned(save.owned.unwrap_or_default())?;
            let processed = save.processed.into_iter().map(wire::processed).collect::<wire::Decoded<Vec<_>>>()?;
            Ok(answer_of(offsets.save(&owned, &processed).await, done_answer, wire::from_offset_error))
        }
        Call::ForgetOffsets(forget) => {
            let (owned, before) = (wire::owned(forget.owned.unwrap_or_default())?, wire::position(forget.before)?);
            Ok(answer_of(offsets.forget_before(&owned, before).await, done_answer, wire::from_offset_error))
        }
        Call::ResetOffsets(owned) => {
            Ok(answer_of(offsets.reset(&wire::owned(owned)?).await, done_answer, wire::from_offset_error))
        }
        _ => Err(wire::Malformed("call of offsets")),
    }
}

/// One page of offsets. The pages of one load are consistent, since a projection claims its slices before it loads
/// them, and no other owner saves meanwhile.
async fn load_offsets(offsets: &dyn OffsetStore, load: proto::LoadOffsets) -> Done {
    let slices = wire::slices(load.first, load.last)?;
    let after = load.after.map(wire::processed).transpose()?;
    let loaded = match offsets.load(&load.projection, slices).await {
        Ok(loaded) => loaded,
        Err(error) => return Ok(Answer::Failure(wire::from_offset_error(error))),
    };
    let place = |processed: &Processed| (processed.position, processed.id.clone());
    let after = after.as_ref().map(place);
    let mut page = proto::Offsets { processed: Vec::new(), more: false };
    let mut bytes = 0;
    for processed in loaded.iter().filter(|processed| after.as_ref().is_none_or(|after| place(processed) > *after)) {
        if bytes >= MAX_PAGE_BYTES {
            page.more = true;
            break;
        }
        let processed = wire::from_processed(processed);
        bytes += processed.encoded_len();
        page.processed.push(processed);
    }
    Ok(Answer::Offsets(page))
}

// ---- Events across histories --------------------------------------------------------------------

const NO_QUERIES: &str = "this server does not serve these queries";

async fn run_queries(queries: Option<&dyn EventQueries>, call: Call) -> Done {
    let Some(queries) = queries else { return Ok(unavailable(NO_QUERIES)) };
    match call {
        Call::ListIds(list) => {
            let after = list.after.map(|id| wire::id(&id)).transpose()?;
            let limit = wire::usize_of(list.limit).min(MAX_IDS);
            let done = queries.persistence_ids(list.entity_type.as_deref(), after.as_ref(), limit).await;
            Ok(answer_of(done, ids, wire::from_read_error))
        }
        Call::FindNewest(_) => {
            let newest = |position: Option<_>| proto::Newest { position: position.map(wire::from_position) };
            Ok(answer_of(queries.newest().await, |found| Answer::Newest(newest(found)), wire::from_read_error))
        }
        Call::FindEvents(find) => {
            let done = find_events(queries, wire::page_query(find)?).await;
            Ok(answer_of(done, |page| Answer::Found(wire::from_event_page(page)), wire::from_query_error))
        }
        _ => Err(wire::Malformed("query")),
    }
}

/// A page of events, at most as large as a page may be, gathered in steps.
async fn find_events(queries: &dyn EventQueries, query: PageQuery) -> Result<EventPage, QueryError> {
    let mut page = EventPage { events: Vec::new(), next: query.after.clone(), more: true };
    let (limit, mut step) = (query.limit.max(1), query);
    let mut bytes = 0;
    while page.more && page.events.len() < limit && bytes < MAX_PAGE_BYTES {
        step.limit = PAGE_STEP.min(limit - page.events.len());
        step.after = page.next.clone();
        let found = match queries.events(&step).await {
            Ok(found) => found,
            Err(error) if page.events.is_empty() => return Err(error),
            // The next page begins with the error.
            Err(_) => break,
        };
        (page.next, page.more) = (found.next, found.more);
        for event in found.events {
            if bytes >= MAX_PAGE_BYTES {
                // The next page reads the events again that do not fit into this one.
                page.next = page.events.last().map_or(step.after, wire::cursor_after);
                page.more = true;
                break;
            }
            bytes += event.event.as_ref().map_or(0, StoredEvent::size_bytes) + POSITION_BYTES;
            page.events.push(event);
        }
    }
    Ok(page)
}

/// Bytes that the position of an event takes, roughly.
const POSITION_BYTES: usize = 64;
