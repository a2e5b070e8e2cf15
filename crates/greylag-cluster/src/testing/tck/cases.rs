//! The cases: required behaviour of every lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{LeaseBench, Outcome, PATIENCE, Report, make};
use crate::{Lease, LeaseError, OnLost};

type Checked = Result<(), Failure>;

enum Failure {
    Skipped(&'static str),
    Wrong(String),
}

impl From<String> for Failure {
    fn from(how: String) -> Self {
        Self::Wrong(how)
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        Self::Wrong(format!("an operation failed: {error:?}"))
    }
}

/// Runs every case against leases of its own.
pub async fn lease(bench: &dyn LeaseBench) -> Report {
    // Run the cases at the same time, since some wait for heartbeats: together they take as long as one. Each case that
    // cuts a node off uses another node.
    let outcomes = tokio::join!(
        granted_once(bench),
        reentrant(bench),
        release(bench),
        names(bench),
        race(bench),
        quiet(bench),
        taken_away(bench),
        abandoned(bench),
        cut_off(bench),
        cut_off_asker(bench),
    );
    let cases = [
        ("a free lease is granted, and to one owner only", outcomes.0),
        ("its holder gets it again, also by another handle", outcomes.1),
        ("given up it is free, and only its holder can give it up", outcomes.2),
        ("leases of different names know nothing of each other, whatever the names", outcomes.3),
        ("of many that ask at once one gets it", outcomes.4),
        ("no owner is told of a loss that was none", outcomes.5),
        ("a lease that was taken away is lost, once", outcomes.6),
        ("a release gives up what an abandoned acquire got", outcomes.7),
        ("a holder that is cut off knows that it lost before another gets it", outcomes.8),
        ("an owner that is cut off and does not hold it gets an error, not a no", outcomes.9),
    ];
    let outcome = |checked| match checked {
        Ok(()) => Outcome::Passed,
        Err(Failure::Skipped(why)) => Outcome::Skipped(why),
        Err(Failure::Wrong(how)) => Outcome::Failed(how),
    };
    Report { cases: cases.into_iter().map(|(name, checked)| (name, outcome(checked))).collect() }
}

fn never() -> OnLost {
    Box::new(|_| {})
}

fn expect(ok: bool, what: &str) -> Checked {
    if ok { Ok(()) } else { Err(Failure::Wrong(what.to_owned())) }
}

/// A lease name that is unique to this run, so that a store may be used again.
fn name(case: &str) -> String {
    format!("tck-{case}-{:x}", rand::random::<u64>())
}

/// A callback of losses, and the receiver of its calls.
fn losses() -> (OnLost, mpsc::UnboundedReceiver<Instant>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let on_lost = move |_| {
        let _nobody_listens_any_more = sender.send(Instant::now());
    };
    (Box::new(on_lost), receiver)
}

async fn granted_once(bench: &dyn LeaseBench) -> Checked {
    let name = name("once");
    let (a, b) = (make(bench, 0, &name, "a:1")?, make(bench, 1, &name, "b:1")?);
    expect(a.name() == name && a.owner() == "a:1", "it knows its name and owner")?;
    expect(!a.check(), "not held before it was acquired")?;
    expect(a.acquire(never()).await?, "a free lease is granted")?;
    expect(a.check(), "held once granted")?;
    expect(!b.acquire(never()).await?, "not granted to a second owner")?;
    expect(!b.check(), "not held by whom it was denied")?;
    expect(a.check(), "held by the first still")?;
    a.release().await?;
    Ok(())
}

async fn reentrant(bench: &dyn LeaseBench) -> Checked {
    let name = name("again");
    let (a, other) = (make(bench, 0, &name, "a:1")?, make(bench, 1, &name, "a:1")?);
    expect(a.acquire(never()).await? && a.acquire(never()).await?, "granted again to its holder")?;
    expect(a.check(), "still held")?;
    // A process restarted at the same address.
    expect(other.acquire(never()).await?, "granted to the successor of its holder")?;
    expect(other.check(), "held by the successor")?;
    expect(other.release().await?, "given up by the successor")?;
    Ok(())
}

async fn release(bench: &dyn LeaseBench) -> Checked {
    let name = name("release");
    let (a, b) = (make(bench, 0, &name, "a:1")?, make(bench, 1, &name, "b:1")?);
    expect(a.release().await?, "a lease without a holder is not held after release")?;
    expect(a.acquire(never()).await?, "granted")?;
    expect(!b.release().await?, "another cannot give it up")?;
    expect(a.check() && !b.acquire(never()).await?, "and its holder keeps it")?;
    expect(a.release().await? && !a.check(), "its holder can")?;
    expect(b.acquire(never()).await?, "and then it is free")?;
    expect(!a.release().await? && b.check(), "the former holder gives up nothing any more")?;
    b.release().await?;
    Ok(())
}

async fn names(bench: &dyn LeaseBench) -> Checked {
    let base = name("names");
    let odd = ["", "/x", "'; drop table x; --", "\u{e4}\u{1f9a2}", "%", " "];
    let mut names: Vec<String> = odd.iter().map(|suffix| format!("{base}{suffix}")).collect();
    names.push(format!("{base}{}", "n".repeat(200)));
    let mut held = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let owner = format!("node-{number}:1");
        let lease = make(bench, number % 2, name, &owner)?;
        expect(lease.acquire(never()).await?, &format!("{name:?} is granted"))?;
        held.push(lease);
    }
    expect(held.iter().all(|lease| lease.check()), "all are held, each by another owner")?;
    for lease in held {
        expect(lease.release().await?, "each is given up")?;
    }
    Ok(())
}

async fn race(bench: &dyn LeaseBench) -> Checked {
    for round in 0..5 {
        let name = name("race");
        let leases: Result<Vec<_>, _> = (0..8).map(|n| make(bench, n % 2, &name, &format!("node-{n}:1"))).collect();
        let leases = leases?;
        let mut tries = JoinSet::new();
        for lease in leases.clone() {
            tries.spawn(async move { lease.acquire(never()).await });
        }
        let mut granted = 0;
        for outcome in tries.join_all().await {
            granted += usize::from(outcome?);
        }
        expect(granted == 1, &format!("round {round}: granted {granted} times"))?;
        expect(leases.iter().filter(|lease| lease.check()).count() == 1, "one is sure to hold it")?;
        for lease in leases.iter().filter(|lease| lease.check()) {
            lease.release().await?;
        }
    }
    Ok(())
}

async fn quiet(bench: &dyn LeaseBench) -> Checked {
    let name = name("quiet");
    let (a, b) = (make(bench, 0, &name, "a:1")?, make(bench, 1, &name, "b:1")?);
    let told = Arc::new(AtomicUsize::new(0));
    let counting = || {
        let told = told.clone();
        Box::new(move |_| {
            told.fetch_add(1, Ordering::SeqCst);
        }) as OnLost
    };
    a.acquire(counting()).await?;
    b.acquire(counting()).await?;
    a.acquire(counting()).await?;
    // Longer than the lease lives without being renewed.
    tokio::time::sleep(bench.settings().heartbeat_timeout.min(Duration::from_secs(10)) + Duration::from_millis(200))
        .await;
    expect(a.check(), "heartbeats keep a lease that no other owner took")?;
    a.release().await?;
    b.release().await?;
    expect(told.load(Ordering::SeqCst) == 0, "a denial, a second acquire and a release are no loss")
}

async fn taken_away(bench: &dyn LeaseBench) -> Checked {
    let name = name("taken");
    let a = make(bench, 0, &name, "a:1")?;
    let (on_lost, mut lost) = losses();
    expect(a.acquire(on_lost).await?, "granted")?;
    if !bench.take_away(&name).await {
        a.release().await?;
        return Err(Failure::Skipped("no hook that takes a lease away"));
    }
    let told = tokio::time::timeout(PATIENCE, lost.recv()).await;
    expect(matches!(told, Ok(Some(_))), "the former holder is told")?;
    expect(!a.check(), "and holds it no more")?;
    expect(tokio::time::timeout(PATIENCE, lost.recv()).await == Ok(None), "it is told once")?;
    Ok(())
}

async fn abandoned(bench: &dyn LeaseBench) -> Checked {
    let name = name("abandoned");
    let (a, b) = (make(bench, 0, &name, "a:1")?, make(bench, 1, &name, "b:1")?);
    for yields in 0..4 {
        let lease = a.clone();
        let task = tokio::spawn(async move { lease.acquire(never()).await });
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        task.abort();
        let completed = matches!(task.await, Ok(Ok(true)));
        expect(completed || !a.check(), "not held by an acquire whose task ended before it succeeded")?;
        a.release().await?;
        expect(b.acquire(never()).await?, "free after the release that follows")?;
        b.release().await?;
    }
    Ok(())
}

/// Tries until the lease is granted; returns the time of the grant.
async fn eventually(lease: &Arc<dyn Lease>) -> Result<Instant, Failure> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Ok(true) = lease.acquire(never()).await {
            return Ok(Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(Failure::Wrong("a lease whose holder is gone never became free".to_owned()))
}

async fn cut_off(bench: &dyn LeaseBench) -> Checked {
    let name = name("cut");
    let (a, b) = (make(bench, 2, &name, "a:1")?, make(bench, 1, &name, "b:1")?);
    let (on_lost, mut lost) = losses();
    expect(a.acquire(on_lost).await?, "granted")?;
    if !bench.cut(2, true).await {
        a.release().await?;
        return Err(Failure::Skipped("no hook that cuts a node off"));
    }
    let granted_at = eventually(&b).await;
    let still_sure = a.check();
    let told_at = lost.try_recv();
    bench.cut(2, false).await;
    let granted_at = granted_at?;
    expect(!still_sure, "the former holder is not sure any more")?;
    expect(told_at.is_ok_and(|told_at| told_at <= granted_at), "it was told before another got it")?;
    expect(b.check(), "the new holder keeps it")?;
    b.release().await?;
    Ok(())
}

async fn cut_off_asker(bench: &dyn LeaseBench) -> Checked {
    let name = name("unknown");
    let a = make(bench, 3, &name, "a:1")?;
    if !bench.cut(3, true).await {
        return Err(Failure::Skipped("no hook that cuts a node off"));
    }
    let outcome = tokio::time::timeout(PATIENCE, a.acquire(never())).await;
    bench.cut(3, false).await;
    expect(!matches!(outcome, Ok(Ok(_))), "the answer of a store that cannot be reached is unknown")?;
    eventually(&a).await?;
    a.release().await?;
    Ok(())
}
