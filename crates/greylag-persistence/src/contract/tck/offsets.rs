//! The offset cases. The specification names the kit and leaves its cases open; these are the rules
//! of persistence §5 (projections) one by one.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use futures::future::join_all;

use super::factories::OffsetFactory;
use super::harness::{Checked, Flags, Report, Stop, cases, ensure, equal, must};
use crate::contract::driver::offset_store::OffsetStore;
use crate::contract::error::OffsetError;
use crate::contract::offset::{OffsetKind, OwnedSlices, OwnerEpoch, Position, Processed};
use crate::contract::records::event::{SeqNr, Timestamp};
use crate::contract::records::persistence_id::{PersistenceId, SLICES};

type S<'a> = &'a Arc<dyn OffsetStore>;

/// Runs every offset case against a fresh store of `factory`, in the order of their numbers.
pub async fn offsets(factory: &impl OffsetFactory, flags: Flags) -> Report {
    let store = &factory.open().await;
    let mut report = Report::default();
    cases! {report, &flags;
        "01 unknown projection" => unknown(store);
        "02 save and load" => save_and_load(store);
        "03 a number never falls" => never_falls(store);
        "04 a whole group is saved" => whole_group(store);
        "05 slices are independent" => slices(store);
        "06 projections are independent" => projections(store);
        "07 a claim raises every epoch" => claim_raises(store);
        "08 a stale owner saves nothing" => stale_owner(store);
        "09 slices not claimed again stay owned" => partial_claim(store);
        "10 slices never claimed" => not_owned(store);
        "11 forgetting keeps the newest" => forget(store);
        "12 reset" => reset(store);
        "13 foreign positions" => foreign(store);
        "14 names" => names(store);
        "15 concurrent claims" => concurrent_claims(store);
        "16 a stale owner forgets nothing" => stale_forget(store);
        "17 health and close" => close(factory);
        "18 marks of other ranges stay" => marks(store);
        "19 starts stay" => starts(store);
    }
    report
}

const ALL: RangeInclusive<u16> = 0..=SLICES - 1;

/// The `number`-th id of the kit whose slice is among these.
fn id_in(slices: RangeInclusive<u16>, number: usize) -> PersistenceId {
    let ids = (0..).map(|number: u32| PersistenceId::of("tck-offset", &number.to_string()).expect("a valid id"));
    ids.filter(|id| slices.contains(&id.slice())).nth(number).expect("every slice has ids")
}

/// A position of the kind of the store.
fn at(store: S<'_>, number: u64) -> Position {
    match store.caps().kind {
        OffsetKind::Ordinal => Position::Ordinal(number),
        OffsetKind::Timestamp => Position::Timestamp(Timestamp::from_micros(1_000_000 + number)),
    }
}

fn processed(store: S<'_>, id: &PersistenceId, seq_nr: u32, number: u64) -> Processed {
    Processed { id: id.clone(), seq_nr: SeqNr::from(seq_nr), position: at(store, number) }
}

/// The entries of `saved` that must come back: all of them, or of ordinals the newest of each slice.
fn kept(store: S<'_>, saved: &[Processed]) -> Vec<Processed> {
    let mut kept: Vec<Processed> = match store.caps().kind {
        OffsetKind::Timestamp => saved.to_vec(),
        OffsetKind::Ordinal => {
            let mut newest: BTreeMap<u16, &Processed> = BTreeMap::new();
            for processed in saved {
                let newest = newest.entry(processed.id.slice()).or_insert(processed);
                if newest.position < processed.position {
                    *newest = processed;
                }
            }
            newest.into_values().cloned().collect()
        }
    };
    kept.sort_by(|left, right| (left.position, &left.id).cmp(&(right.position, &right.id)));
    kept
}

/// Compares the loaded entries; a store of ordinals may return more than it must.
async fn expect(
    store: S<'_>,
    what: &str,
    projection: &str,
    slices: RangeInclusive<u16>,
    saved: &[Processed],
) -> Checked {
    let loaded = must("load", store.load(projection, slices).await)?;
    let order = |left: &Processed, right: &Processed| (left.position, &left.id) <= (right.position, &right.id);
    ensure(loaded.is_sorted_by(order), || format!("{what}: not ordered by position: {loaded:?}"))?;
    ensure(loaded.iter().all(|loaded| saved.contains(loaded)), || {
        format!("{what}: {loaded:?} has what was not saved, or not in these slices; saved are {saved:?}")
    })?;
    equal(what, kept(store, &loaded), kept(store, saved))
}

async fn unknown(store: S<'_>) -> Checked {
    expect(store, "of an unknown projection", "tck-unknown", ALL, &[]).await?;
    must("claim", store.claim("tck-claimed", ALL).await)?;
    expect(store, "of one merely claimed", "tck-claimed", ALL, &[]).await
}

async fn save_and_load(store: S<'_>) -> Checked {
    let owned = must("claim", store.claim("tck-save", ALL).await)?;
    let first = processed(store, &id_in(ALL, 0), 1, 1);
    must("save", store.save(&owned, std::slice::from_ref(&first)).await)?;
    expect(store, "saved", "tck-save", ALL, std::slice::from_ref(&first)).await?;
    let next = processed(store, &first.id, 2, 5);
    must("save", store.save(&owned, std::slice::from_ref(&next)).await)?;
    must("save again", store.save(&owned, std::slice::from_ref(&next)).await)?;
    must("save of nothing", store.save(&owned, &[]).await)?;
    expect(store, "saved later", "tck-save", ALL, &[next]).await
}

async fn never_falls(store: S<'_>) -> Checked {
    let owned = must("claim", store.claim("tck-falls", ALL).await)?;
    let id = id_in(ALL, 0);
    let newest = processed(store, &id, 7, 9);
    must("save", store.save(&owned, std::slice::from_ref(&newest)).await)?;
    for (seq_nr, number) in [(6, 8), (7, 8), (1, 1)] {
        must("save of an older one", store.save(&owned, &[processed(store, &id, seq_nr, number)]).await)?;
    }
    expect(store, "after older ones", "tck-falls", ALL, &[newest]).await
}

async fn whole_group(store: S<'_>) -> Checked {
    let owned = must("claim", store.claim("tck-group", ALL).await)?;
    let mut group: Vec<Processed> = (0..300_u32)
        .map(|number| processed(store, &id_in(ALL, number as usize), number + 1, u64::from(number) + 10))
        .collect();
    let before = processed(store, &group[7].id, 1, 1);
    group.insert(0, before.clone());
    must("save of a group", store.save(&owned, &group).await)?;
    group.retain(|processed| *processed != before);
    expect(store, "every id of the group", "tck-group", ALL, &group).await
}

async fn slices(store: S<'_>) -> Checked {
    let owned = must("claim", store.claim("tck-slices", ALL).await)?;
    let (low, high) = (id_in(0..=511, 0), id_in(512..=1023, 0));
    let saved = [processed(store, &low, 3, 30), processed(store, &high, 4, 40)];
    must("save", store.save(&owned, &saved).await)?;
    expect(store, "the low half", "tck-slices", 0..=511, &saved[..1]).await?;
    expect(store, "the high half", "tck-slices", 512..=1023, &saved[1..]).await?;
    expect(store, "one slice", "tck-slices", high.slice()..=high.slice(), &saved[1..]).await?;
    expect(store, "both", "tck-slices", ALL, &saved).await
}

async fn projections(store: S<'_>) -> Checked {
    let id = id_in(ALL, 0);
    let names = ["tck-p", "tck-p-1", "tck-pé", "TCK-P"];
    for (number, name) in (1..).zip(names) {
        let owned = must("claim", store.claim(name, ALL).await)?;
        must("save", store.save(&owned, &[processed(store, &id, number, 1)]).await)?;
    }
    for (number, name) in (1..).zip(names) {
        expect(store, name, name, ALL, &[processed(store, &id, number, 1)]).await?;
    }
    Ok(())
}

async fn claim_raises(store: S<'_>) -> Checked {
    let slices = 10..=13;
    let first = must("claim", store.claim("tck-claim", slices.clone()).await)?;
    equal("projection", first.projection.as_str(), "tck-claim")?;
    equal("slices", first.epochs.keys().copied().collect::<Vec<_>>(), vec![10, 11, 12, 13])?;
    let second = must("claim", store.claim("tck-claim", 12..=14).await)?;
    for (slice, epoch) in &second.epochs {
        let before = first.epochs.get(slice).copied().unwrap_or(OwnerEpoch::NONE);
        equal(&format!("epoch of slice {slice}"), *epoch, before.raised())?;
    }
    Ok(())
}

/// Checks that the refusal of a stale owner names the slice it lost, and the owner's epoch.
fn stale(what: &str, answer: Result<(), OffsetError>, owned: &OwnedSlices, slice: u16) -> Checked {
    let projection = owned.projection.clone();
    let own = owned.epochs.get(&slice).copied().unwrap_or_default();
    equal(what, answer, Err(OffsetError::StaleOwner { projection, slice, own, current: own.raised() }))
}

async fn stale_owner(store: S<'_>) -> Checked {
    let zombie = must("claim", store.claim("tck-stale", ALL).await)?;
    let (low, high) = (id_in(0..=511, 0), id_in(512..=1023, 0));
    let before = [processed(store, &low, 1, 1), processed(store, &high, 1, 2)];
    must("save", store.save(&zombie, &before).await)?;
    let owner = must("claim of the high half", store.claim("tck-stale", 512..=1023).await)?;
    let late = [processed(store, &low, 2, 3), processed(store, &high, 2, 4)];
    stale("save of a stale owner", store.save(&zombie, &late).await, &zombie, high.slice())?;
    expect(store, "nothing of it is saved", "tck-stale", ALL, &before).await?;
    must("save of the owner", store.save(&owner, &late[1..]).await)?;
    expect(store, "what the owner saved", "tck-stale", 512..=1023, &late[1..]).await
}

async fn partial_claim(store: S<'_>) -> Checked {
    let first = must("claim", store.claim("tck-partial", ALL).await)?;
    must("claim of the high half", store.claim("tck-partial", 512..=1023).await)?;
    let low = processed(store, &id_in(0..=511, 0), 1, 1);
    must("save of a slice still owned", store.save(&first, std::slice::from_ref(&low)).await)?;
    expect(store, "saved", "tck-partial", ALL, &[low]).await
}

async fn not_owned(store: S<'_>) -> Checked {
    let owned = must("claim", store.claim("tck-not-owned", 0..=511).await)?;
    let (low, high) = (id_in(0..=511, 0), id_in(512..=1023, 0));
    let refused = store.save(&owned, &[processed(store, &low, 1, 1), processed(store, &high, 1, 2)]).await;
    let (projection, slice) = ("tck-not-owned".to_owned(), high.slice());
    equal("save of a slice never claimed", refused, Err(OffsetError::NotOwned { projection, slice }))?;
    expect(store, "nothing is saved", "tck-not-owned", ALL, &[]).await
}

async fn forget(store: S<'_>) -> Checked {
    let owned = must("claim", store.claim("tck-forget", ALL).await)?;
    // Two ids of one slice, and one id of another.
    let slice = id_in(ALL, 0).slice();
    let [old, new] = [0, 1].map(|number| id_in(slice..=slice, number));
    let alone = id_in(if slice < 512 { 512..=1023 } else { 0..=511 }, 0);
    let [old, new, alone] = [(&old, 1), (&new, 5), (&alone, 2)].map(|(id, number)| processed(store, id, 1, number));
    must("save", store.save(&owned, &[old.clone(), new.clone(), alone.clone()]).await)?;
    must("forget", store.forget_before(&owned, at(store, 1)).await)?;
    expect(store, "nothing stands before the first", "tck-forget", ALL, &[old, new.clone(), alone.clone()]).await?;
    must("forget", store.forget_before(&owned, at(store, 5)).await)?;
    expect(store, "the newest of each slice stays", "tck-forget", ALL, &[new.clone(), alone.clone()]).await?;
    must("forget", store.forget_before(&owned, at(store, 100)).await)?;
    expect(store, "however old", "tck-forget", ALL, &[new, alone]).await
}

async fn reset(store: S<'_>) -> Checked {
    let owned = must("claim", store.claim("tck-reset", ALL).await)?;
    let (low, high) = (processed(store, &id_in(0..=511, 0), 9, 90), processed(store, &id_in(512..=1023, 0), 8, 80));
    must("save", store.save(&owned, &[low.clone(), high.clone()]).await)?;
    let half = must("claim", store.claim("tck-reset", 512..=1023).await)?;
    must("reset", store.reset(&half).await)?;
    expect(store, "the other half", "tck-reset", ALL, std::slice::from_ref(&low)).await?;
    let again = processed(store, &high.id, 1, 10);
    must("save from the start", store.save(&half, std::slice::from_ref(&again)).await)?;
    expect(store, "both", "tck-reset", ALL, &[low, again]).await?;
    // A reset deletes offsets, but not the fence.
    stale("save of the owner before", store.save(&owned, std::slice::from_ref(&high)).await, &owned, high.id.slice())
}

async fn foreign(store: S<'_>) -> Checked {
    let owned = must("claim", store.claim("tck-foreign", ALL).await)?;
    let position = match store.caps().kind {
        OffsetKind::Ordinal => Position::Timestamp(Timestamp::from_micros(1)),
        OffsetKind::Timestamp => Position::Ordinal(1),
    };
    let (id, seq_nr) = (id_in(ALL, 0), SeqNr::FIRST);
    let own = processed(store, &id_in(ALL, 1), 1, 1);
    let saved = store.save(&owned, &[own, Processed { id, seq_nr, position }]).await;
    let forgotten = store.forget_before(&owned, position).await;
    for (what, answer) in [("save", saved), ("forget", forgotten)] {
        ensure(matches!(answer, Err(OffsetError::ForeignOffset { .. })), || {
            format!("{what} of a foreign position must be refused, but: {answer:?}")
        })?;
    }
    expect(store, "nothing is saved", "tck-foreign", ALL, &[]).await
}

async fn names(store: S<'_>) -> Checked {
    for name in ["", "a\u{1f}b", "a\0", &"n".repeat(256)] {
        let refused = store.claim(name, ALL).await;
        ensure(refused == Err(OffsetError::InvalidName), || format!("{name:?} must be refused, but: {refused:?}"))?;
    }
    must("claim under 255 bytes", store.claim(&"n".repeat(255), 0..=0).await).map(drop)
}

async fn concurrent_claims(store: S<'_>) -> Checked {
    let claims = join_all((0..8).map(|_| store.claim("tck-concurrent", 0..=3))).await;
    let claims: Vec<OwnedSlices> =
        claims.into_iter().collect::<Result<_, _>>().map_err(|error| Stop::Failed(error.to_string()))?;
    let id = id_in(0..=3, 0);
    let slice = id.slice();
    let mut epochs: Vec<u64> =
        claims.iter().filter_map(|owned| owned.epochs.get(&slice)).map(|epoch| epoch.as_u64()).collect();
    epochs.sort_unstable();
    equal("epochs of one slice", epochs.clone(), (1..=8).collect())?;
    for owned in &claims {
        let saved = store.save(owned, &[processed(store, &id, 1, 1)]).await;
        let newest = owned.epochs.get(&slice).map(|epoch| epoch.as_u64()) == Some(8);
        ensure(saved.is_ok() == newest, || {
            format!("only the greatest epoch saves, but at {:?}: {saved:?}", owned.epochs)
        })?;
    }
    Ok(())
}

async fn stale_forget(store: S<'_>) -> Checked {
    let zombie = must("claim", store.claim("tck-stale-forget", 5..=5).await)?;
    let saved: Vec<_> = [(0, 1), (1, 2)].map(|(id, number)| processed(store, &id_in(5..=5, id), 1, number)).into();
    must("save", store.save(&zombie, &saved).await)?;
    must("claim", store.claim("tck-stale-forget", 5..=5).await)?;
    stale("reset by a stale owner", store.reset(&zombie).await, &zombie, 5)?;
    stale("forgetting by a stale owner", store.forget_before(&zombie, at(store, 2)).await, &zombie, 5)?;
    expect(store, "all is there", "tck-stale-forget", ALL, &saved).await
}

async fn marks(store: S<'_>) -> Checked {
    // Three ranges that begin with slice 0, as after ranges were divided anew, and an event of that slice.
    let mark = |last: u16, number: u64| {
        let mut ids =
            (0..).map(|n: u32| PersistenceId::of("gl.projection", &format!("0-{last}/{n}")).expect("a valid id"));
        let id = ids.find(|id| id.slice() == 0).expect("every slice has ids");
        let seq_nr = u32::try_from(number + 1).expect("a small number");
        processed(store, &id, seq_nr, number)
    };
    let owned = must("claim", store.claim("tck-marks", ALL).await)?;
    let event = processed(store, &id_in(0..=0, 0), 1, 60);
    let mut saved = vec![mark(1023, 50), mark(511, 70), mark(255, 55)];
    for processed in saved.iter().chain([&event]) {
        must("save", store.save(&owned, std::slice::from_ref(processed)).await)?;
    }
    must("save of an older mark", store.save(&owned, &[mark(1023, 40)]).await)?;
    saved.sort_by_key(|mark| mark.position);
    let mut loaded = must("load", store.load("tck-marks", ALL).await)?;
    loaded.retain(Processed::is_mark);
    equal("marks of all ranges", loaded, saved.clone())?;
    must("forget", store.forget_before(&owned, at(store, 55)).await)?;
    let mut loaded = must("load", store.load("tck-marks", ALL).await)?;
    loaded.retain(Processed::is_mark);
    equal("marks that are not too old", loaded, saved.split_off(1))?;
    must("reset", store.reset(&owned).await)?;
    expect(store, "after a reset", "tck-marks", ALL, &[]).await
}

async fn starts(store: S<'_>) -> Checked {
    let owned = must("claim", store.claim("tck-starts", 5..=5).await)?;
    let ids = (0..).map(|n: u32| PersistenceId::of("gl.projection", &format!("!5-9/{n}")).expect("a valid id"));
    let id = ids.into_iter().find(|id| id.slice() == 5).expect("every slice has ids");
    let starts = async |what: &str, expected: &Processed| {
        let mut loaded = must("load", store.load("tck-starts", ALL).await)?;
        loaded.retain(Processed::is_start);
        equal(what, loaded, vec![expected.clone()])
    };
    let start = |number| processed(store, &id, number, 0);
    let event = processed(store, &id_in(5..=5, 0), 7, 70);
    must("save", store.save(&owned, &[start(1), event.clone()]).await)?;
    starts("beside what was processed", &start(1)).await?;
    must("reset", store.reset(&owned).await)?;
    expect(store, "after a reset", "tck-starts", ALL, &[start(1)]).await?;
    must("save", store.save(&owned, &[start(2)]).await)?;
    must("save again", store.save(&owned, &[start(1), event]).await)?;
    starts("a later one", &start(2)).await?;
    must("forget", store.forget_before(&owned, at(store, 60)).await)?;
    starts("after everything older is forgotten", &start(2)).await
}

async fn close(factory: &impl OffsetFactory) -> Checked {
    let store = &factory.open().await;
    let owned = must("claim", store.claim("tck-closed", 0..=0).await)?;
    ensure(!matches!(store.health(), crate::Health::Down(_)), || "an open store is not down".to_owned())?;
    must("close", store.close().await)?;
    ensure(matches!(store.health(), crate::Health::Down(_)), || "a closed store is down".to_owned())?;
    let (saved, loaded) = (store.save(&owned, &[]).await, store.load("tck-closed", ALL).await);
    ensure(matches!(saved, Err(OffsetError::Unavailable(_))), || {
        format!("a save after close must fail, but: {saved:?}")
    })?;
    ensure(matches!(loaded, Err(OffsetError::Unavailable(_))), || {
        format!("a load after close must fail, but: {loaded:?}")
    })
}
