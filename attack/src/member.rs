//! A member gone bad: it joined as others do, and says what no member would.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greylag_cluster::{Cluster, ClusterEvent, ClusterSettings, Downing, MemberStatus, SbrSettings};
use greylag_core::{CodecId, UniqueAddress};
use greylag_transport::{Destination, Envelope, GrpcTransport, Recipient, Remoting};

use crate::probe::{meet, outsider};
use crate::schema::messages;
use crate::shop::Node;
use crate::stranger::Tally;
use crate::{Attackers, Failure, Secrets};

/// Between two messages to one node; what is counted here is what is refused, not how much fits.
const PAUSE: Duration = Duration::from_millis(2);

/// The member, and what it saw of the others.
pub(crate) struct Member {
    transport: Arc<GrpcTransport>,
    cluster: Cluster,
    others: Vec<UniqueAddress>,
    accusations: Arc<Mutex<Vec<String>>>,
}

impl Member {
    pub(crate) async fn join(nodes: &[Node], secrets: Option<&Arc<Secrets>>) -> Result<Self, Failure> {
        let transport = outsider(secrets).await?;
        let settings = ClusterSettings {
            downing: Downing::SplitBrainResolver(SbrSettings::default()),
            ..ClusterSettings::default()
        };
        let remoting: Arc<dyn Remoting> = transport.clone();
        let cluster = Cluster::start_on(transport.control_runtime(), settings, remoting).await?;
        cluster.join_seed_nodes(nodes.iter().map(|node| node.address.clone()).collect()).await?;
        tokio::time::timeout(Duration::from_secs(120), cluster.wait_up()).await??;
        let others = meet(&transport, nodes).await?;
        let accusations = Arc::new(Mutex::new(Vec::new()));
        let (mut events, seen, view) = (cluster.subscribe(), accusations.clone(), cluster.clone());
        let began = Instant::now();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let accusation = match event {
                    // In the end the members leave in order, and one that has announced its end is unreachable until its
                    // removal is heard of (cluster F11).
                    ClusterEvent::UnreachableMember(member) if member.status == MemberStatus::Exiting => continue,
                    ClusterEvent::UnreachableMember(member) => format!("{} was taken for unreachable", member.address),
                    ClusterEvent::MemberDowned(member) => format!("{} was downed", member.address),
                    _ => continue,
                };
                let members = view.view();
                let members: Vec<_> =
                    members.members.iter().map(|member| (member.address.address().port(), member.status)).collect();
                let accusation =
                    format!("{accusation} after {:.1} s; members {members:?}", began.elapsed().as_secs_f32());
                seen.lock().expect("nothing under this lock panics").push(accusation);
            }
        });
        Ok(Self { transport, cluster, others, accusations })
    }

    /// Says every message of every layer to every other member, numbers at their ends, again and again.
    pub(crate) fn misbehave(&self, attackers: &mut Attackers, tally: &Arc<Tally>) {
        for to in self.others.clone() {
            let (transport, tally) = (self.transport.clone(), tally.clone());
            attackers.spawn(async move {
                let from = transport.self_address().clone();
                let all = messages(&to, &from);
                for round in 0_u64.. {
                    for message in &all {
                        let recipient = Recipient::new(message.path.clone());
                        let payload = message.payload.clone();
                        let envelope = Envelope::new(recipient, CodecId::INTERNAL, message.manifest, payload);
                        let sent = if round % 4 == 3 {
                            transport.send_reliable(&to, envelope)
                        } else {
                            transport.send(&Destination::Incarnation(to.clone()), envelope)
                        };
                        if sent.is_ok() {
                            tally.by_member.fetch_add(1, Ordering::Relaxed);
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            });
        }
    }

    /// What it saw while the storefront ran, the members that left in the end aside.
    pub(crate) fn accusations(&self) -> Vec<String> {
        // Its own view, which ends with this program.
        let _members = self.cluster.view().members.len();
        self.accusations.lock().expect("nothing under this lock panics").clone()
    }
}
