//! A malicious member: joins as others do, then sends messages that no correct member sends.

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

/// The pause between two messages to one node; the test is about refusals, not about throughput.
const PAUSE: Duration = Duration::from_millis(2);

/// The malicious member, and what its membership saw of the others.
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
                    // Members leave at the end of the run, and an exiting member counts as unreachable until the news
                    // of its removal arrives (cluster F11).
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

    /// Sends every message of every layer, with numbers at their boundary values, to every other member, again and
    /// again.
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

    /// The members found unreachable or downed while the storefront ran, without those that were exiting.
    pub(crate) fn accusations(&self) -> Vec<String> {
        // Only a use of the field, which exists to keep this membership running until the end.
        let _members = self.cluster.view().members.len();
        self.accusations.lock().expect("nothing under this lock panics").clone()
    }
}
