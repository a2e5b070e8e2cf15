//! Clients that call the admin service without pause.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use greylag_management::v1;

use crate::Attackers;
use crate::shop::Node;
use crate::stranger::Tally;

/// Clients per attacked node.
const CLIENTS: usize = 64;

/// Adds up a node's counts of dropped messages in the tally, every half second until the run ends.
async fn read_counters(address: String, tally: Arc<Tally>) {
    let Ok(mut client) = greylag_management::connect(&address) else { return };
    let mut before: BTreeMap<String, u64> = BTreeMap::new();
    loop {
        if let Ok(reply) = client.counters(v1::CountersRequest {}).await {
            let reply = reply.into_inner();
            let mut now = BTreeMap::from([("malformed frames".to_owned(), reply.malformed_frames)]);
            for letters in reply.dead_letters {
                *now.entry(letters.reason).or_default() += letters.count;
            }
            let mut all = tally.dropped.lock().expect("nothing under this lock panics");
            for (reason, count) in &now {
                let known = before.get(reason).copied().unwrap_or_default();
                *all.entry(reason.clone()).or_default() += count.saturating_sub(known);
            }
            before = now;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

pub(crate) fn start(attackers: &mut Attackers, node: &Node, tally: &Arc<Tally>) {
    attackers.spawn(read_counters(node.admin.clone(), tally.clone()));
    for number in 0..CLIENTS {
        let (address, tally) = (node.admin.clone(), tally.clone());
        attackers.spawn(async move {
            loop {
                if ask(&address, number, &tally).await.is_none() {
                    // The connection was refused, or the node has ended.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        });
    }
}

/// Calls the admin service until the connection ends; a call refused as exhausted does not end it.
async fn ask(address: &str, number: usize, tally: &Tally) -> Option<()> {
    let mut client = greylag_management::connect(address).ok()?;
    loop {
        let outcome = if number.is_multiple_of(2) {
            client.health(v1::HealthRequest {}).await.map(drop)
        } else {
            client.members(v1::MembersRequest {}).await.map(drop)
        };
        match outcome {
            Ok(()) => drop(tally.answered.fetch_add(1, Ordering::Relaxed)),
            Err(status) if status.code() == tonic::Code::ResourceExhausted => {
                tally.turned_away.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => return None,
        }
    }
}
